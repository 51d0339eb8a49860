#!/bin/sh
# Prints the home folder of a Java 17 or newer, for JAVA_HOME. Looks in JAVA_HOME, on the
# PATH and where systems keep theirs; failing that, installs one if it may.
set -eu
cd "$(dirname "$0")/.."

# The major version of the Java in folder $1; 0 if there is none. "1.8.0" counts as 1.
major() {
    version=$("$1/bin/java" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1)
    echo "${version:-0}"
}

homes() {
    # The path alone may be a shim or a chain of links: Java itself knows where it lives.
    if command -v java >/dev/null 2>&1; then
        java -XshowSettings:properties -version 2>&1 | sed -n 's/^ *java\.home = //p'
    fi
    if [ -x /usr/libexec/java_home ]; then /usr/libexec/java_home -v 17+ 2>/dev/null || true; fi
    for home in /usr/lib/jvm/* /opt/homebrew/opt/openjdk*/libexec/openjdk.jdk/Contents/Home \
        /usr/local/opt/openjdk*/libexec/openjdk.jdk/Contents/Home; do
        echo "$home"
    done
}

print_home() {
    homes | while IFS= read -r home; do
        if [ -x "$home/bin/java" ] && [ "$(major "$home")" -ge 17 ]; then
            echo "$home"
            break
        fi
    done
}

if [ -n "${JAVA_HOME:-}" ]; then
    if [ "$(major "$JAVA_HOME")" -ge 17 ]; then
        echo "$JAVA_HOME"
        exit
    fi
    echo "==> JAVA_HOME=$JAVA_HOME holds no Java 17 or newer; looking elsewhere" >&2
fi

home=$(print_home)
if [ -z "$home" ]; then
    sh scripts/system_package.sh \
        apt-get=openjdk-17-jre-headless apt-get=openjdk-21-jre-headless \
        dnf=java-17-openjdk-headless dnf=java-21-openjdk-headless \
        apk=openjdk17-jre-headless brew=openjdk@17 || true
    home=$(print_home)
fi
if [ -z "$home" ]; then
    echo "==> Spark needs Java 17 or newer. Install it (Debian, Ubuntu: openjdk-17-jre-headless; Fedora: java-21-openjdk-headless; macOS: brew install openjdk@17) or set JAVA_HOME, then call make again." >&2
    exit 1
fi
echo "$home"
