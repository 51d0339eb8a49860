(() => {
  "use strict";
  const frames = [...document.querySelectorAll("figure")];
  const [previous, play, next, slider, counter] =
    ["previous", "play", "next", "slider", "counter"].map((id) => document.getElementById(id));
  const last = frames.length - 1;
  let now = 0;
  let timer = null;

  function show(number) {
    now = Math.max(0, Math.min(last, Math.trunc(number) || 0));
    frames.forEach((frame, index) => { frame.hidden = index !== now; });
    slider.value = now + 1;
    counter.value = `${now + 1} / ${frames.length}`;
    slider.setAttribute("aria-valuetext", frames[now].querySelector("h2").textContent);
    previous.disabled = now === 0;
    next.disabled = now === last;
    if (now === last) pause();
  }

  function pause() {
    clearInterval(timer);
    timer = null;
    play.textContent = "▶ Play";
    play.setAttribute("aria-label", "Play");
  }

  function toggle() {
    if (timer !== null) return pause();
    if (now === last) show(0);
    if (last === 0) return;
    timer = setInterval(() => show(now + 1), Number(document.body.dataset.pace));
    play.textContent = "❚❚ Pause";
    play.setAttribute("aria-label", "Pause");
  }

  function go(number) {
    pause();
    show(number);
  }

  // page.html#5 is the fifth step.
  function fromAddress() {
    go(Number(location.hash.slice(1) || 1) - 1);
  }

  // PageUp and PageDown are what a presenter's remote control sends.
  const keys = {
    ArrowRight: () => go(now + 1), PageDown: () => go(now + 1),
    ArrowLeft: () => go(now - 1), PageUp: () => go(now - 1),
    Home: () => go(0), End: () => go(last), " ": toggle,
  };

  document.addEventListener("keydown", (event) => {
    const plain = !event.altKey && !event.ctrlKey && !event.metaKey;
    const pressed = event.key === " " && event.target.tagName === "BUTTON"; // it clicks by itself
    if (!plain || pressed || !(event.key in keys)) return;
    event.preventDefault();
    keys[event.key]();
  });
  previous.addEventListener("click", () => go(now - 1));
  next.addEventListener("click", () => go(now + 1));
  play.addEventListener("click", toggle);
  slider.addEventListener("input", () => go(Number(slider.value) - 1));
  window.addEventListener("hashchange", fromAddress);
  document.body.classList.add("steps");
  fromAddress();
})();
