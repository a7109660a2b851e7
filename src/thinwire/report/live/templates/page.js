"use strict";
// Puts what the server has drawn in its place. Parts that did not change stay as they are, with focus, selection and
// open tables; a section is put in anew only where its parts are others than before.
(() => {
  const live = document.getElementById("live");

  const parts = (root) => new Map([...root.querySelectorAll("[data-part]")].map((one) => [one.dataset.part, one]));

  const sameKeys = (a, b) => a.size === b.size && [...a.keys()].every((key) => b.has(key));

  const toTheEnd = (root) => {
    for (const lines of root.querySelectorAll(".lines")) lines.scrollTop = lines.scrollHeight;
  };

  const putAnew = (place, fresh) => {
    const open = [...place.querySelectorAll("details[open][id]")].map((one) => one.id);
    const focused = place.contains(document.activeElement) ? document.activeElement.id : "";
    const ticked = new Map([...place.querySelectorAll("input[id]")].map((one) => [one.id, one.checked]));
    place.replaceChildren(...fresh.childNodes);
    for (const id of open) document.getElementById(id)?.setAttribute("open", "");
    for (const [id, checked] of ticked) {
      const box = document.getElementById(id);
      if (box) box.checked = checked;
    }
    toTheEnd(place);
    charts.upgrade(place);
    if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  };

  const update = (id, html) => {
    const place = document.getElementById(id);
    if (!place) return;
    const template = document.createElement("template");
    template.innerHTML = html;
    const before = parts(place), after = parts(template.content);
    if (before.size === 0 || !sameKeys(before, after)) {
      putAnew(place, template.content);
      return;
    }
    for (const [key, fresh] of after) {
      const old = before.get(key);
      if (old.innerHTML === fresh.innerHTML) continue;
      const atEnd = old.scrollHeight - old.scrollTop - old.clientHeight < 8;
      old.className = fresh.className;
      old.replaceChildren(...fresh.childNodes);
      if (atEnd) old.scrollTop = old.scrollHeight;
      charts.upgrade(old);
    }
  };

  const source = new EventSource("/events" + location.search);
  const say = (text) => { if (live.textContent !== text) live.textContent = text; };
  source.onerror = () => say("Connection lost; reconnecting.");
  source.addEventListener("sections", (event) => {
    for (const [id, html] of Object.entries(JSON.parse(event.data))) update(id, html);
  });
  toTheEnd(document);
})();
