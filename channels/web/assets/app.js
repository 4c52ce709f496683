"use strict";
// The chat page. Replies arrive as server-sent events and are replaced in place by their ids; messages wait in
// the browser's storage until the bridge has taken them, and are sent again under the same id until then.

(() => {
  const labels = JSON.parse(document.getElementById("labels").textContent);
  const $ = (id) => document.getElementById(id);
  const log = $("log"), scroll = $("scroll"), text = $("text"), working = $("working");
  const make = (tag, className, content) => {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (content !== undefined) element.textContent = content;
    return element;
  };

  // ---- what is shown -------------------------------------------------------------------------------

  const groups = new Map(); // group id -> {element, pos, to, items: Map}
  let showEarlier = false;

  const nearEnd = () => scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 80;
  const toEnd = () => { scroll.scrollTop = scroll.scrollHeight; $("latest").hidden = true; };
  let following = true; // the reader is at the end and wants to stay there

  function change(action) {
    action();
    if (following) toEnd();
    else $("latest").hidden = nearEnd();
  }

  // Places a message by its position; a reply never stands above the message that it answers.
  function place(group) {
    let before = null;
    for (const other of groups.values()) {
      if (other === group || !other.element.isConnected) continue;
      const after = other.to && other.to === group.id ? true : group.to === other.id ? false : other.pos > group.pos;
      if (after && (!before || other.pos < before.pos)) before = other;
    }
    log.insertBefore(group.element, before ? before.element : null);
  }

  function groupOf(data) {
    let group = groups.get(data.group);
    if (!group) {
      const mine = data.role === "user";
      const element = make("article", mine ? "mine" : "bot");
      element.setAttribute("aria-label", mine ? labels.you : labels.bot);
      group = { id: data.group, element, pos: data.pos, to: data.to || "", items: new Map(), mine };
      if (!mine) element.append(make("div", "tools"), make("div", "cards"), make("div", "body"));
      groups.set(data.group, group);
      place(group);
    } else if (mineNow(group, data)) {
      group.pos = data.pos;
      place(group);
    }
    return group;
  }

  // A message of ours had only a guessed position until the bridge told its own.
  const mineNow = (group, data) => group.mine && group.pos !== data.pos;

  function showUser(data) {
    const group = groupOf(data);
    const fresh = data.text.trim() === "/new";
    group.fresh = fresh;
    group.element.className = fresh ? "divider" : "mine";
    group.element.replaceChildren(fresh ? make("span", "", labels.new_conversation) : make("div", "text", data.text));
    if (data.at) group.element.title = new Date(data.at * 1000).toLocaleString();
  }

  function showNote(id, className, note, action) {
    const group = groups.get("u:" + id);
    if (!group) return;
    group.element.classList.toggle("pending", className === "pending");
    group.element.classList.toggle("failed", className === "failed");
    group.element.querySelector(".note")?.remove();
    if (!note) return;
    const line = make("div", "note", note);
    if (action) {
      const again = make("button", "", labels.retry);
      again.type = "button";
      again.addEventListener("click", action);
      line.append(again);
    }
    group.element.append(line);
  }

  // Ids end in "/<number>": the pieces of a reply stand in that order, whichever comes first.
  function itemOf(group, data, parent, create) {
    let item = group.items.get(data.id);
    if (!item) {
      item = create();
      item.number = Number(data.id.slice(data.id.lastIndexOf("/") + 1));
      group.items.set(data.id, item);
      const next = [...group.items.values()].find(
        (other) => other !== item && other.element.parentNode === parent && other.number > item.number);
      parent.insertBefore(item.element, next ? next.element : null);
    }
    return item;
  }

  function showText(data, from) {
    const group = groupOf(data);
    const body = group.element.querySelector(".body");
    const item = itemOf(group, data, body, () => ({ element: make("div", "text"), html: [] }));
    if (item.isFile) return;
    item.html.length = Math.min(item.html.length, from + data.blocks.length);
    while (item.element.children.length > item.html.length) item.element.lastChild.remove();
    data.blocks.forEach((html, i) => {
      const at = from + i;
      if (item.html[at] === html) return; // unchanged: a selection in it stays
      const block = item.element.children[at] || item.element.appendChild(make("div", "block"));
      block.innerHTML = html; // made by the bridge, which lets no markup of the model through
      item.html[at] = html;
    });
    group.element.setAttribute("aria-busy", String(!data.final));
    if (data.final) item.element.querySelectorAll("pre").forEach(addCopy);
  }

  function addCopy(pre) {
    if (pre.querySelector(".copy") || !navigator.clipboard) return;
    const button = make("button", "copy", labels.copy);
    button.type = "button";
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(pre.querySelector("code").textContent);
      } catch {
        return; // the browser said no; the text can still be selected
      }
      button.textContent = labels.copied;
      setTimeout(() => { button.textContent = labels.copy; }, 1500);
    });
    pre.append(button);
  }

  function showFile(data) {
    const group = groupOf(data);
    const body = group.element.querySelector(".body");
    const item = itemOf(group, data, body, () => ({ element: make("figure", "file"), isFile: true }));
    const address = "/web/file/" + encodeURIComponent(data.file.id);
    const link = make("a");
    link.href = address;
    if (data.file.image) {
      const image = make("img");
      image.src = address;
      image.alt = data.file.name;
      link.target = "_blank";
      link.rel = "noopener";
      image.addEventListener("load", () => change(() => {}));
      link.append(image);
    } else {
      link.className = "download";
      link.download = data.file.name;
      link.title = labels.file;
      link.append(make("span", "", data.file.name), make("span", "size", size(data.file.size)));
    }
    item.element.replaceChildren(link);
    if (data.caption) item.element.append(make("figcaption", "", data.caption));
  }

  function size(bytes) {
    if (bytes < 1000) return bytes + " B";
    if (bytes < 1e6) return (bytes / 1e3).toFixed(0) + " kB";
    return (bytes / 1e6).toFixed(1) + " MB";
  }

  function showTool(data) {
    const group = groupOf(data);
    const tools = group.element.querySelector(".tools");
    let item = group.items.get(data.id);
    if (!item) {
      item = { element: make("details", "tool") };
      group.items.set(data.id, item);
      tools.append(item.element);
      const summary = make("summary");
      summary.innerHTML = '<span class="mark"></span><span class="name"></span><span class="state"></span>' +
        '<svg class="chevron" viewBox="0 0 24 24" aria-hidden="true"><path d="M9 6l6 6-6 6"/></svg>';
      summary.addEventListener("click", (event) => {
        if (item.element.classList.contains("bare")) event.preventDefault();
      });
      item.element.append(summary, make("div", "parts"));
    }
    const bare = !data.input && !data.output;
    item.element.className = `tool ${data.state}${bare ? " bare" : ""}`;
    item.element.querySelector(".name").textContent = data.name;
    item.element.querySelector(".state").textContent = labels["tool." + data.state];
    const parts = item.element.querySelector(".parts");
    parts.replaceChildren();
    for (const part of ["input", "output"]) {
      if (data[part]) parts.append(make("h4", "", labels["tool." + part]), make("pre", "", data[part]));
    }
  }

  // A question with buttons, or what became of it.
  function showCard(data) {
    const group = groupOf(data);
    let item = group.items.get(data.id);
    if (!item) {
      item = { element: make("section", "card"), at: data.at };
      item.element.setAttribute("role", "group");
      item.element.setAttribute("aria-label", labels.card);
      group.items.set(data.id, item);
      const cards = group.element.querySelector(".cards");
      const next = [...group.items.values()].find(
        (other) => other !== item && other.element.parentNode === cards && other.at > item.at);
      cards.insertBefore(item.element, next ? next.element : null);
    }
    const focused = item.element.contains(document.activeElement);
    const open = data.outcome === undefined;
    item.element.classList.toggle("settled", !open);
    item.element.replaceChildren(blocksOf("text", data.blocks));
    if (open) {
      const choices = make("div", "choices"), said = make("p", "said");
      said.setAttribute("role", "status");
      for (const choice of data.choices) {
        const button = make("button", choice.style, choice.label);
        button.type = "button";
        button.addEventListener("click", () => press(data.id, choice.id, choices, said));
        choices.append(button);
      }
      item.element.append(choices, said);
    } else {
      const outcome = blocksOf("outcome", data.outcome);
      outcome.tabIndex = -1;
      item.element.append(outcome);
      if (focused) outcome.focus({ preventScroll: true });
    }
    showBusy();
    document.title = (log.querySelector(".card:not(.settled)") ? "\u25cf " : "") + "Causeway";
  }

  function blocksOf(className, blocks) {
    const element = make("div", className);
    for (const html of blocks) element.appendChild(make("div", "block")).innerHTML = html; // made by the bridge
    return element;
  }

  async function press(card, choice, choices, said) {
    if (choices.dataset.sent) return;
    const able = (yes) => {
      if (yes) delete choices.dataset.sent;
      else choices.dataset.sent = "1";
      for (const button of choices.children) button.setAttribute("aria-disabled", String(!yes));
    };
    able(false);
    let words = labels["card.failed"];
    try {
      const answer = await fetch("/web/press", {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify({ card, choice }),
        signal: AbortSignal.timeout(15000),
      });
      const body = await answer.json();
      words = answer.ok ? body.said : body.error || words;
    } catch { /* the words say so */ }
    change(() => { said.textContent = words; });
    setTimeout(() => able(true), 1000); // the outcome comes with the stream; without one it may be tried again
  }

  // After "/new" the page is empty again; what was before is a click away.
  function fold() {
    const ordered = [...groups.values()].filter((g) => g.element.isConnected);
    let start = -1;
    const children = [...log.children];
    for (const group of ordered) if (group.fresh) start = Math.max(start, children.indexOf(group.element));
    children.forEach((element, i) => { element.hidden = i < start + 1 && start >= 0 && !showEarlier; });
    // The answer to "/new" is a remark, not a reply.
    for (const group of ordered) group.element.classList.toggle("aside", Boolean(groups.get(group.to)?.fresh));
    $("earlier").hidden = start <= 0 || showEarlier;
    const talked = ordered.some((g) => g.mine && !g.fresh && children.indexOf(g.element) > start);
    $("empty").hidden = talked || (start < 0 && ordered.length > 0) || !ready;
  }

  // ---- the stream of events --------------------------------------------------------------------------

  let source = null, lastSeq = "", ready = false, pause = 500, watchdog = 0, reopening = 0, leaving = false;
  let busyUntil = 0, busyTimer = 0;

  function setConnection(state) {
    $("connection").dataset.state = state;
    $("connection").querySelector(".label").textContent = labels[state];
  }

  async function open() {
    clearTimeout(reopening);
    source?.close();
    try {
      const answer = await fetch("/web/session", { method: "POST", signal: AbortSignal.timeout(10000) });
      if (!answer.ok) throw new Error(String(answer.status));
    } catch {
      lost();
      return;
    }
    source = new EventSource("/web/events" + (lastSeq ? "?after=" + lastSeq : ""));
    source.onerror = lost;
    const on = (name, action) => source.addEventListener(name, (event) => {
      alive();
      if (event.lastEventId) lastSeq = event.lastEventId;
      action(JSON.parse(event.data));
    });
    on("entry", (data) => change(() => { showEntry(data); if (ready) fold(); }));
    on("live", (data) => change(() => {
      if (data.role === "tool") showTool(data);
      else showText(data, data.from);
      if (ready) fold();
    }));
    on("busy", (data) => setBusy(data.on));
    on("reset", () => { groups.clear(); log.replaceChildren(); outbox.forEach(showPending); });
    on("ping", () => {});
    on("ready", () => {
      pause = 500;
      setConnection("online");
      if (!ready) following = true;
      ready = true;
      change(fold);
      flush();
    });
    alive();
  }

  function showEntry(data) {
    if (data.role === "user") {
      showUser(data);
      const id = data.id.slice(2);
      if (outbox.has(id)) forget(id);
    } else if (data.role === "tool") showTool(data);
    else if (data.choices) showCard(data);
    else if (data.file) showFile({ ...data, caption: data.blocks ? "" : data.text });
    else showText({ ...data, final: true }, 0);
  }

  // Pings come every 15 s: a connection that is silent for longer is dead, whatever the browser thinks.
  function alive() {
    clearTimeout(watchdog);
    watchdog = setTimeout(lost, 40000);
  }

  function lost() {
    source?.close();
    source = null;
    clearTimeout(watchdog);
    clearTimeout(reopening);
    if (leaving) return;
    setConnection("offline");
    reopening = setTimeout(open, pause * (0.75 + Math.random() / 2));
    pause = Math.min(pause * 2, 10000);
  }

  function setBusy(on) {
    busyUntil = on ? Date.now() + 15000 : 0;
    clearTimeout(busyTimer);
    if (on) busyTimer = setTimeout(() => setBusy(false), 15000);
    change(showBusy);
    $("stop").hidden = !on;
  }

  // While the person is asked something, it is their turn: no sign of work.
  function showBusy() {
    working.hidden = !busyUntil || Boolean(log.lastElementChild?.querySelector(".card:not(.settled)"));
  }

  // A browser opens six connections to a server at most: pages nobody looks at let theirs go after a minute.
  let hiding = 0;
  document.addEventListener("visibilitychange", () => {
    clearTimeout(hiding);
    if (document.hidden) {
      hiding = setTimeout(() => { source?.close(); source = null; clearTimeout(watchdog); }, 60000);
    } else if (!source) {
      pause = 500;
      open();
    }
  });
  addEventListener("online", () => { pause = 500; if (!source) open(); });
  addEventListener("offline", lost);
  addEventListener("pagehide", () => { leaving = true; source?.close(); source = null; });
  addEventListener("pageshow", (event) => { leaving = false; if (event.persisted) open(); });

  // ---- sending ---------------------------------------------------------------------------------------

  const PREFIX = "causeway.out.";
  const outbox = new Map(); // id -> {id, text, at}
  let flushing = false, sendPause = 500, sendTimer = 0;

  function remember(message) {
    outbox.set(message.id, message);
    try { localStorage.setItem(PREFIX + message.id, JSON.stringify(message)); } catch { /* memory only */ }
  }

  function forget(id) {
    outbox.delete(id);
    try { localStorage.removeItem(PREFIX + id); } catch { /* memory only */ }
  }

  function recall() {
    const found = [];
    try {
      for (let i = 0; i < localStorage.length; i++) {
        const key = localStorage.key(i);
        if (!key.startsWith(PREFIX)) continue;
        try { found.push(JSON.parse(localStorage.getItem(key))); } catch { localStorage.removeItem(key); }
      }
    } catch { return; }
    found.sort((a, b) => a.at - b.at);
    for (const message of found) { outbox.set(message.id, message); showPending(message); }
  }

  function newId() {
    const bytes = crypto.getRandomValues(new Uint8Array(16)); // randomUUID needs a secure context
    return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  }

  function showPending(message) {
    showUser({ group: "u:" + message.id, pos: message.at, role: "user", text: message.text, at: message.at / 1000 });
    if (message.error) showNote(message.id, "failed", `${labels.not_sent} ${message.error} `, () => retry(message));
    else showNote(message.id, "pending", source ? "" : labels.waiting);
  }

  function retry(message) {
    delete message.error;
    remember(message);
    showPending(message);
    flush();
  }

  function send(content) {
    const last = Math.max(0, ...[...groups.values()].map((group) => group.pos));
    const message = { id: newId(), text: content, at: Math.max(Date.now(), last + 1) };
    following = true;
    remember(message);
    change(() => { showPending(message); fold(); });
    flush();
  }

  // One after the other, so that messages keep their order.
  async function flush() {
    if (flushing) return;
    flushing = true;
    clearTimeout(sendTimer);
    try {
      for (;;) {
        const message = [...outbox.values()].find((waiting) => !waiting.error);
        if (!message) return;
        if (!(await post(message))) {
          sendTimer = setTimeout(flush, sendPause);
          sendPause = Math.min(sendPause * 2, 10000);
          return;
        }
        sendPause = 500;
      }
    } finally {
      flushing = false;
    }
  }

  // True when the message is settled: taken, or refused for good.
  async function post(message) {
    let answer, body = {};
    try {
      answer = await fetch("/web/send", {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify({ id: message.id, text: message.text }),
        signal: AbortSignal.timeout(40000),
      });
      if (!answer.ok) body = await answer.json().catch(() => ({}));
    } catch {
      if (!outbox.has(message.id)) return true; // the answer was lost, but the stream has told that it was taken
      showNote(message.id, "pending", labels.waiting);
      return false;
    }
    if (answer.ok) {
      forget(message.id);
      showNote(message.id, "", "");
      return true;
    }
    if (answer.status >= 500 || answer.status === 429 || body.again) {
      showNote(message.id, "pending", labels.waiting);
      return false;
    }
    message.error = body.error || String(answer.status);
    remember(message);
    showPending(message);
    return true;
  }

  // ---- the composer ------------------------------------------------------------------------------------

  function fit() {
    text.style.height = "auto";
    text.style.height = Math.min(text.scrollHeight, 200) + "px";
    $("send").disabled = !text.value.trim();
    if (following) toEnd();
  }

  function submit() {
    const content = text.value.trim();
    if (!content) return;
    text.value = "";
    fit();
    send(content);
  }

  text.addEventListener("input", fit);
  text.addEventListener("keydown", (event) => {
    // While an input method composes, Enter chooses a word (229: browsers that tell it only so).
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.keyCode === 229) return;
    event.preventDefault();
    submit();
  });
  $("composer").addEventListener("submit", (event) => { event.preventDefault(); submit(); text.focus(); });
  $("stop").addEventListener("click", () => send("/stop"));
  $("new").addEventListener("click", () => {
    showEarlier = false;
    if ([...groups.values()].some((group) => group.mine)) send("/new");
    text.focus();
  });
  $("earlier").addEventListener("click", () => { showEarlier = true; fold(); });
  $("suggestions").addEventListener("click", (event) => {
    if (event.target.matches("button")) { send(event.target.textContent); text.focus(); }
  });
  scroll.addEventListener("scroll", () => {
    following = nearEnd();
    $("latest").hidden = following;
  }, { passive: true });
  $("latest").addEventListener("click", () => { following = true; toEnd(); text.focus(); });
  addEventListener("resize", () => { if (following) toEnd(); });

  recall();
  fit();
  open();
})();
