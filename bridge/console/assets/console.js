"use strict";
// The console. Every five seconds the whole state is asked for; a row is made anew only when what it shows has
// changed, so nothing flickers, and what is open, scrolled or focused stays so.

(() => {
  const labels = JSON.parse(document.getElementById("labels").textContent);
  const language = document.documentElement.lang;
  const $ = (id) => document.getElementById(id);
  const EVERY = 5000;

  // ---- making things -----------------------------------------------------------------------------------

  const make = (tag, className, ...content) => {
    const element = document.createElement(tag);
    if (className) element.className = className;
    element.append(...content.filter((one) => one !== "" && one !== null));
    return element;
  };
  const number = new Intl.NumberFormat(language);
  const money = new Intl.NumberFormat(language, { maximumFractionDigits: 4 });
  const relative = new Intl.RelativeTimeFormat(language, { numeric: "auto" });

  const faint = (...words) => make("span", "faint", words.filter(Boolean).join(" "));
  const name = (words) => make("span", "name", words);
  const line = (...content) => make("div", "line", ...content.filter((one) => !(one instanceof Node) || one.className !== "faint" || one.textContent));
  const sign = (kind, words) => make("span", kind, make("span", "dot"), " ", faint(words));

  function time(at) {
    const element = make("time", "faint");
    element.dateTime = new Date(at * 1000).toISOString();
    element.title = new Date(at * 1000).toLocaleString(language);
    element.dataset.at = at;
    tell(element);
    return element;
  }

  function tell(element) {
    const seconds = Number(element.dataset.at) - Date.now() / 1000;
    const [unit, size] = Math.abs(seconds) < 3600 ? ["minute", 60] : Math.abs(seconds) < 86400 ? ["hour", 3600] : ["day", 86400];
    const words = relative.format(Math.round(seconds / size), unit);
    if (element.textContent !== words) element.textContent = words;
  }

  function details(summary, ...content) {
    return make("details", "", make("summary", "", summary), ...content);
  }

  // ---- keeping lists -------------------------------------------------------------------------------------

  // Makes `list` show `items`: a row stays as it is while its item does. `row` makes what is in a row.
  function show(list, items, key, row) {
    const before = new Map([...list.children].map((element) => [element.dataset.key, element]));
    items.forEach((item, i) => {
      const id = String(key(item)), stamp = JSON.stringify(item);
      let element = before.get(id);
      before.delete(id);
      if (!element || element.dataset.stamp !== stamp) {
        const fresh = list.tagName === "TBODY" ? make("tr") : make("li");
        fresh.dataset.key = id;
        fresh.dataset.stamp = stamp;
        fresh.append(...row(item));
        if (element) replace(element, fresh);
        element = fresh;
      }
      if (list.children[i] !== element) list.insertBefore(element, list.children[i] || null);
    });
    for (const gone of before.values()) gone.remove();
  }

  function replace(old, fresh) {
    const opened = [...old.querySelectorAll("details")].map((one) => one.open);
    const places = "button, select, summary";
    const focused = [...old.querySelectorAll(places)].indexOf(document.activeElement);
    old.replaceWith(fresh);
    fresh.querySelectorAll("details").forEach((one, i) => { one.open = Boolean(opened[i]); });
    if (focused >= 0) fresh.querySelectorAll(places)[focused]?.focus({ preventScroll: true });
  }

  const listOf = (items, key, row) => {
    const list = make("ul");
    show(list, items, key, row);
    return list;
  };

  function orNone(list, items, key, row) {
    show(list, items.length ? items : [{ none: true }], (item) => (item.none ? "~none" : key(item)),
      (item) => (item.none ? [faint(labels.none)] : row(item)));
  }

  // ---- acting --------------------------------------------------------------------------------------------

  function button(words, className, action) {
    const element = make("button", className, words);
    element.type = "button";
    element.addEventListener("click", () => {
      if (element.getAttribute("aria-disabled") !== "true") action(element);
    });
    return element;
  }

  async function post(path, body, pressed) {
    const able = (yes) => pressed.parentNode?.querySelectorAll("button").forEach(
      (one) => one.setAttribute("aria-disabled", String(!yes)));
    able(false);
    let words = labels.failed;
    try {
      const answer = await fetch("/console/" + path, {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify({ ...body, language }),
        signal: AbortSignal.timeout(15000),
      });
      const told = await answer.json();
      words = told.said || told.error || words;
    } catch { /* the words say so */ }
    say(words);
    await refresh();
    able(true);
  }

  let hush = 0;
  function say(words) {
    $("said").textContent = words;
    $("said").hidden = false;
    clearTimeout(hush);
    hush = setTimeout(() => { $("said").hidden = true; }, 8000);
  }

  // ---- the sections --------------------------------------------------------------------------------------

  function approval(one) {
    const actions = make("div", "actions",
      button(labels.once, "primary", (pressed) => post("approval", { id: one.id, yes: true }, pressed)),
      button(labels.no, "danger", (pressed) => post("approval", { id: one.id, yes: false }, pressed)));
    return [
      line(name(one.tool), faint(one.source === "builtin" ? labels.builtin : one.source),
        faint(labels.for, `${one.channel}:${one.asker}`, one.kind === "direct" ? "" : `(${one.chat})`), faint(labels.ends), time(one.until)),
      make("pre", "", one.arguments),
      actions,
    ];
  }

  function request(one) {
    const role = make("select");
    role.setAttribute("aria-label", labels.role);
    for (const value of ["member", "admin", "guest"]) {
      const option = make("option", "", labels[value]);
      option.value = value;
      role.append(option);
    }
    role.value = one.first ? "admin" : "member";
    const end = make("span", "end", role,
      button(labels.let_in, "primary", (pressed) => post("pair", { code: one.code, yes: true, role: role.value }, pressed)),
      button(labels.refuse, "danger", (pressed) => post("pair", { code: one.code, yes: false }, pressed)));
    return [line(name(one.name || one.person), faint(labels.asks), faint(`${one.channel}:${one.person}`),
      make("code", "", one.code), time(one.asked), faint(one.first ? labels.first : ""), end)];
  }

  function channel(one) {
    const rows = [line(sign(one.ok ? "good" : "bad", one.ok ? labels.ok : labels.trouble), name(one.name),
      faint(one.type === one.name ? "" : one.type))];
    if (one.reason) rows.push(make("p", one.ok ? "faint" : "why", one.reason));
    if (one.cure) rows.push(make("p", "cure", one.cure));
    return rows;
  }

  function tool(one) {
    const calls = one.calls && `${number.format(one.calls)} ${labels.calls}, ${number.format(one.ms)} ms`;
    const failures = one.failures && `${number.format(one.failures)} ${labels.failures}`;
    return [line(make("span", "mono", one.name), faint(number.format(one.tokens), labels.tokens),
      faint(calls), faint(failures), faint(one.on ? "" : labels.off))];
  }

  // Who let somebody in, or decided: people have ids, this machine has a name in the reader's language.
  const by = (who) => faint(who && `${labels.by} ${{ "this machine": labels.here, console: labels.title }[who] || who}`);

  const KINDS = { ready: "good", failed: "bad", disabled: "idle", builtin: "good" };
  const state = (one) => (one === "failed" ? labels.trouble : labels[one]);

  function server(one) {
    const count = one.count && `${number.format(one.count)} ${labels.tool_count}`;
    const head = line(sign(KINDS[one.state] || "", state(one.state)), name(one.name || labels.builtin),
      faint(count), faint(one.tokens && number.format(one.tokens), one.tokens && labels.tokens));
    const rows = [one.tools.length ? details(head, listOf(one.tools, (each) => each.name, tool)) : head];
    if (one.reason) rows.push(make("p", one.state === "ready" ? "faint" : "why", one.reason));
    return rows;
  }

  function skill(one) {
    const counts = ["offered", "read", "used"].map((each) => `${labels[each]} ${number.format(one[each])}`).join(", ");
    const kind = { available: "good", disabled: "idle" }[one.state] || "";
    const rows = [line(sign(kind, labels[one.state]), name(one.name), faint(one.source === "builtin" ? labels.builtin : ""), faint(counts))];
    if (one.missing) rows.push(make("p", "cure", one.missing));
    return rows;
  }

  function person(one) {
    const row = line(name(`${one.channel}:${one.person}`), faint(labels[one.role]), by(one.by));
    if (one.at) {
      let sure = false;
      row.append(time(one.at), make("span", "end", button(labels.revoke, "danger", (pressed) => {
        if (sure) { post("revoke", { channel: one.channel, person: one.person }, pressed); return; }
        sure = true;
        pressed.textContent = labels.sure;
        pressed.addEventListener("blur", () => { sure = false; pressed.textContent = labels.revoke; }, { once: true });
      })));
    }
    return [row];
  }

  const FIGURES = ["answers", "input", "cached", "output", "tools", "cost"];
  const figure = (kind, value) => (kind === "cost" ? money : number).format(value);
  const figureLabel = (kind) => (kind === "tools" ? labels.tool_calls : labels[kind]);

  function total(one) {
    const head = make("th", "", figureLabel(one.kind));
    head.scope = "row";
    return [head, make("td", "", figure(one.kind, one.today)), make("td", "", figure(one.kind, one.month))];
  }

  const GROUPS = { person: "person", chat: "by_chat", session: "by_session", model: "by_model", tool: "by_tool" };

  function group(one) {
    const shown = FIGURES.filter((kind) => one.rows.some((row) => row[kind]));
    const head = make("tr", "", make("th", "", labels.name), ...shown.map((kind) => make("th", "", figureLabel(kind))));
    head.querySelectorAll("th").forEach((each) => { each.scope = "col"; });
    const body = make("tbody", "", ...one.rows.map((row) => {
      const first = make("th", "mono", decoded(row.name));
      first.scope = "row";
      return make("tr", "", first, ...shown.map((kind) => make("td", "", figure(kind, row[kind]))));
    }));
    const table = make("div", "scroll", make("table", "", make("thead", "", head), body));
    table.tabIndex = 0;
    return [details(labels[GROUPS[one.name]], table)];
  }

  const WHOSE = { person: "each_person", chat: "each_chat", total: "in_all" };
  const WHAT = { messages: "messages", tokens: "day_tokens", runs: "runs" };

  function limit([kind, value]) {
    const [whose, what] = kind.split("_");
    return [line(make("span", "", labels[WHOSE[whose]]), faint(number.format(value), labels[WHAT[what]]))];
  }

  function session(one) {
    const body = make("div", "body");
    const row = details(line(make("span", "mono", decoded(one.key)), faint(number.format(one.entries), labels.entries)), body);
    row.addEventListener("toggle", async () => {
      if (!row.open || body.childElementCount) return;
      try {
        const answer = await fetch("/console/session?key=" + encodeURIComponent(one.key), { signal: AbortSignal.timeout(15000) });
        const told = await answer.json();
        body.replaceChildren(...(told.parts ? budget(told) : [faint(labels.refused)]));
      } catch { body.replaceChildren(); say(labels.failed); }
    });
    return [row];
  }

  const decoded = (key) => { try { return decodeURIComponent(key); } catch { return key; } };

  function budget(told) {
    const all = Object.values(told.sums).reduce((sum, each) => sum + each, 0);
    const bar = (label, tokens) => {
      const fill = make("i");
      fill.style.width = `${all ? (100 * tokens) / all : 0}%`;
      return make("div", "", line(make("span", "", label), make("span", "count faint", number.format(tokens))), make("span", "bar", fill));
    };
    const tools = told.parts.filter((part) => part.kind === "tools");
    const each = details(faint(`${number.format(tools.length)} ${labels.tool_count}`),
      listOf(tools, (part) => part.name, (part) => [bar(make("span", "mono", part.name), part.tokens)]));
    return [
      make("p", "", `${labels.next} ${number.format(all)} ${labels.tokens}`),
      ...["system", "skills", "tools", "history"].flatMap((kind) =>
        [bar(labels[kind].toLowerCase(), told.sums[kind]), ...(kind === "tools" && tools.length ? [each] : [])]),
    ];
  }

  const OUTCOMES = { once: "allowed", refused: "not_permitted" };

  function audited(one) {
    const head = line(time(one.at), name(one.tool), faint(labels[OUTCOMES[one.what] || one.what] || one.what),
      by(one.by), faint(labels.for, one.asker), make("span", "mono faint", decoded(one.session)));
    return [one.arguments ? details(head, make("pre", "", one.arguments)) : head];
  }

  function showAll(now) {
    $("nothing").hidden = Boolean(now.approvals.length || now.waiting.length);
    show($("approvals"), now.approvals, (one) => one.id, approval);
    show($("waiting"), now.waiting, (one) => one.code, request);
    document.title = `${$("nothing").hidden ? "\u25cf " : ""}Causeway \u00b7 ${labels.title}`;
    if ($("model").textContent !== now.model) $("model").textContent = now.model;
    if ($("since").dataset.at !== String(now.since)) {
      $("since").dataset.at = now.since;
      $("since").replaceChildren(time(now.since));
    }
    orNone($("channels"), now.channels, (one) => one.name, channel);
    const { today, month, by: groups } = now.usage;
    show($("usage"), FIGURES.map((kind) => ({ kind, today: today[kind], month: month[kind] })), (one) => one.kind, total);
    show($("by"), Object.keys(GROUPS).map((each) => ({ name: each, rows: groups[each] })).filter((one) => one.rows.length), (one) => one.name, group);
    orNone($("limits"), Object.entries(now.limits), (one) => one[0], limit);
    const tokens = now.builtin.reduce((sum, one) => sum + one.tokens, 0);
    const builtin = { name: "", state: "ready", reason: "", tokens, count: now.builtin.length, tools: now.builtin };
    show($("servers"), [...now.servers, builtin], (one) => `s:${one.name}`, server);
    $("problems").hidden = !now.problems.length;
    show($("problems").querySelector("ul"), now.problems, (one) => one, (one) => [make("p", "why", one)]);
    orNone($("skills"), now.skills, (one) => one.name, skill);
    show($("diagnostics"), now.diagnostics, (one) => one.text, (one) => [make("p", one.severity === "error" ? "why" : "cure", one.text)]);
    orNone($("people"), now.people, (one) => JSON.stringify([one.channel, one.person, one.by]), person);
    orNone($("sessions"), now.sessions, (one) => one.key, session);
    $("more").hidden = now.sessions.length < sessions || sessions >= 1000;
    orNone($("audit"), now.audit, (one) => one.seq, audited);
    document.querySelectorAll("time[data-at]").forEach(tell);
  }

  // ---- asking --------------------------------------------------------------------------------------------

  let timer = 0, sessions = 50, asked = 0;

  function connection(state) {
    $("connection").dataset.state = state;
    $("connection").querySelector(".label").textContent = labels[state];
  }

  async function refresh() {
    clearTimeout(timer);
    const mine = ++asked;
    try {
      const answer = await fetch("/console/state?sessions=" + sessions, { signal: AbortSignal.timeout(10000) });
      if (answer.status === 401 || answer.status === 403) connection("locked");
      else if (!answer.ok) throw new Error(String(answer.status));
      else {
        const now = await answer.json();
        if (mine !== asked) return; // a later question has been put meanwhile
        showAll(now);
        connection("online");
      }
    } catch {
      if (mine === asked) connection("offline");
    }
    // Also when nobody looks, if less often: the title tells that something waits.
    if (mine === asked) timer = setTimeout(refresh, document.hidden ? 6 * EVERY : EVERY);
  }

  document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
  $("more").addEventListener("click", () => { sessions = Math.min(sessions * 4, 1000); refresh(); });
  refresh();
})();
