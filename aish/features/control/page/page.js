"use strict";
// The page of a run: folds its events, and answers its questions. What others have written becomes
// text nodes only, and the calls of questions are shown as the server has laid them out.
(() => {
  const VISIBLE_MS = 500; // a card has to be visible for so long before it can be answered
  const STAGED_MS = 10000; // after `a`, Enter counts for so long
  const SILENT_MS = 45000; // the server writes something each 15 s
  const FIRST_DELAY = 500, LONGEST_DELAY = 10000;
  const HEAD_ROWS = 40, TAIL_ROWS = 20;
  const MOST_TEXTS = 30, MOST_CALLS = 200, MOST_PAST = 100, MOST_ITEMS = 100;
  const LONGEST_TEXT = 20000, LONGEST_BODY = 100000;

  const $ = (id) => document.getElementById(id);
  const make = (name, given = {}, ...children) => {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(given)) {
      if (key === "on") for (const [type, act] of Object.entries(value)) element.addEventListener(type, act);
      else if (key === "hidden") element.hidden = value;
      else if (value !== null && value !== undefined) element.setAttribute(key, value);
    }
    element.append(...children);
    return element;
  };
  const put = (element, text) => {
    if (element.textContent !== text) element.textContent = text;
  };
  // What stands between backticks is code; a backtick that has no other stays.
  const prose = (text) =>
    text.split(/(`[^`\n]+`)/).map((part, index) => (index % 2 ? make("code", {}, part.slice(1, -1)) : part));
  const said = new WeakMap();
  const putProse = (element, text) => {
    if (said.get(element) === text) return;
    said.set(element, text);
    element.replaceChildren(...prose(text));
  };

  // Characters that are invisible, or change what stands around them, as `aish.core.text` has them.
  const ODD = new RegExp(
    "\\r\\n|[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u2028\\u2029\\ud800-\\udfff\\u061c\\u200e\\u200f\\u202a-\\u202e" +
      "\\u2066-\\u2069\\u00ad\\u034f\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f\\u200b-\\u200d\\u2060-\\u2065" +
      "\\u206a-\\u206f\\u3164\\ufe00-\\ufe0d\\ufeff\\uffa0\\ufff0-\\ufffb\\u{1bca0}-\\u{1bca3}\\u{1d173}-\\u{1d17a}" +
      "\\u{e0000}-\\u{e0fff}]|(?<![\\xa9\\xae\\u203c-\\u205f\\u2070-\\u3163\\u3165-\\u3299\\u{1f000}-\\u{1faff}])" +
      "[\\ufe0e\\ufe0f](?!\\u20e3)",
    "gu",
  );
  const spell = (odd) => {
    if (odd === "\r\n") return "\n";
    if (odd === "\r") return "\\r";
    const code = odd.codePointAt(0), digits = code.toString(16);
    if (code <= 0xff) return `\\x${digits.padStart(2, "0")}`;
    return code <= 0xffff ? `\\u${digits.padStart(4, "0")}` : `\\U${digits.padStart(8, "0")}`;
  };
  const visible = (text) => String(text).replace(ODD, spell);
  const onLine = (text) => visible(text).replace(/\n/g, "⏎").replace(/\t/g, " ");

  const pad = (number) => String(number).padStart(2, "0");
  const zone = new Intl.DateTimeFormat("en", { timeZoneName: "short" })
    .formatToParts(0).find((part) => part.type === "timeZoneName").value;
  const clock = (time) => {
    const date = new Date(time);
    const today = new Date(Date.now() + skew).toDateString() === date.toDateString();
    const day = today ? "" : `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())} `;
    return `${day}${pad(date.getHours())}:${pad(date.getMinutes())} ${zone}`;
  };
  const took = (seconds) => {
    if (seconds === null || seconds === undefined) return "";
    if (seconds < 10) return `${seconds.toFixed(1)} s`;
    return long(seconds);
  };
  const long = (seconds) => {
    const whole = Math.max(0, Math.floor(seconds));
    const hours = Math.floor(whole / 3600), minutes = Math.floor(whole / 60) % 60;
    if (hours >= 48) return `${Math.floor(hours / 24)} days`;
    if (hours) return `${hours} h ${minutes} min`;
    return minutes ? `${minutes} min ${whole % 60} s` : `${whole} s`;
  };
  const counted = (number) => number.toLocaleString("en");
  const many = (number, word) => `${counted(number)} ${word}${number === 1 ? "" : "s"}`;
  const dollars = (cost) =>
    cost === null ? "–" : cost === 0 ? "$0" : cost < 0.01 ? `$${cost.toFixed(4)}` : `$${cost.toFixed(2)}`;
  const place = (one) => [one.step, one.item].filter(Boolean).map(onLine).join(" · ");
  const placeKey = (one, ...more) => JSON.stringify([one.step, one.item, ...more]);

  // ---- Requests -------------------------------------------------------------------------------

  let token = null; // in memory only
  let tokenEnds = 0;
  let mayAnswer = true;
  let skew = 0; // milliseconds that the clock of the server is ahead

  class Refused extends Error {
    constructor(status, error) {
      super(error.hint ? `${error.message} (${error.hint})` : error.message);
      this.status = status;
      this.code = error.code;
    }
  }

  // Nothing came back: the network, or the server, is not there.
  class Lost extends Error {}

  const network = async (promise) => {
    try {
      return await promise;
    } catch (error) {
      throw new Lost(error.message, { cause: error });
    }
  };
  const request = async (path, { body, accept = "application/json", signal, isPublic = false } = {}) => {
    const headers = { Accept: accept };
    if (token !== null && !isPublic) headers.Authorization = `Bearer ${token}`;
    if (body !== undefined) headers["Content-Type"] = "application/json";
    const sent = fetch(`api/v1/${path}`, {
      method: body === undefined ? "GET" : "POST",
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
      cache: "no-store",
      credentials: "omit",
      redirect: "error",
      referrerPolicy: "no-referrer",
    });
    const response = await network(sent);
    const date = Date.parse(response.headers.get("date") ?? "");
    if (!Number.isNaN(date)) skew = date - Date.now();
    if (response.ok) return response;
    let error = { code: "", message: `the server answered with status ${response.status}`, hint: null };
    try {
      error = (await response.json()).error ?? error;
    } catch {
      // Something in front of the server has answered: the status is all that is known.
    }
    throw new Refused(response.status, error);
  };
  const json = async (path, options) => network((await request(path, options)).json());
  const report = (error) => {
    if (!(error instanceof Refused || error instanceof Lost)) reportError(error);
  };

  // ---- What is known of the run ---------------------------------------------------------------

  let status = null;
  let statusAt = 0;
  let last = null; // the number of the last event
  let isConnected = false;
  let wanted = null; // the question that the address names
  const cards = []; // as they stand on the page
  const past = new Map(); // questions that have ended, by id
  const calls = new Map();
  const texts = new Map();
  const items = new Map(); // of each step
  let callsMade = 0;
  let isStopping = false; // a signal or a command has ended it, and something is still under way

  const isOver = () => status !== null && (status.state === "finished" || status.state === "paused");

  const forget = () => {
    status = last = null;
    isStopping = false;
    for (const card of cards.splice(0)) card.leave();
    for (const known of [past, calls, texts, items]) known.clear();
    callsMade = 0;
    for (const id of ["cards", "calls", "texts", "steps", "past"]) $(id).replaceChildren();
    stepRows.clear();
    showCounts();
  };

  // ---- Figures and steps ----------------------------------------------------------------------

  const STATES = {
    running: ["running", "ok"], waiting: ["waiting", "warn"], stopping: ["stopping", "warn"], paused: ["paused", "warn"],
    ok: ["ok", "ok"], pending: ["pending", ""], skipped: ["skipped", ""], denied: ["denied", "bad"],
    failed: ["failed", "bad"], budget: ["limit reached", "bad"],
  };
  const setChip = (chip, word) => {
    const [text, kind] = STATES[word] ?? [onLine(word).replace(/_/g, " "), word === "finished" ? "" : "bad"];
    put(chip, text);
    const name = kind ? `chip ${kind}` : "chip";
    if (chip.className !== name) chip.className = name;
  };
  const chipOf = (word) => {
    const chip = make("span", { class: "chip" });
    setChip(chip, word);
    return chip;
  };

  // The id of a server of clients, and not of a run.
  const isServer = (run) => /^hub-[0-9a-f]{16}$/.test(run);

  const stepRows = new Map();
  const showStatus = () => {
    if (status === null) return;
    put($("pipeline"), onLine(status.pipeline));
    put($("run"), `${isServer(status.run) ? "Server" : "Run"} ${onLine(status.run)}`);
    const { exit, tokens } = status;
    const now = isStopping && !isOver() ? "stopping" : status.state;
    setChip($("state"), now === "finished" && exit ? exit.name : now);
    const known = tokens && tokens.input !== null && tokens.output !== null;
    put($("tokens"), known ? counted(tokens.input + tokens.output) : "–");
    $("tokens").title = known ? `${counted(tokens.input)} in, ${counted(tokens.output)} out` : "";
    put($("cost"), dollars(status.cost_usd));
    $("exit").hidden = exit === null;
    if (exit !== null) {
      const reason = exit.reason ? `: ${onLine(exit.reason)}` : "";
      const hint = exit.hint ? `. ${onLine(exit.hint)}` : "";
      putProse($("exit"), `The ${isServer(status.run) ? "server" : "run"} has ended, exit code ${exit.code} (${onLine(exit.name)})${reason}${hint}`);
    }
    for (const step of status.steps) showStep(step);
    showTime();
    showCounts();
  };

  const showStep = (step) => {
    let row = stepRows.get(step.id);
    if (row === undefined) {
      row = { chip: make("span", { class: "chip" }), done: make("span", { class: "took" }), bar: null };
      row.name = make("span", { class: "name text" }, onLine(step.id));
      row.list = make("ul", {});
      row.summary = make("summary", {}, row.name, row.done, row.chip);
      row.details = make("details", {}, row.summary, make("div", { class: "body" }, row.list));
      row.line = make("div", { class: "line" });
      row.entry = make("div", { class: "entry" }, row.line);
      row.details.addEventListener("toggle", () => showItems(step.id));
      stepRows.set(step.id, row);
      $("steps").append(row.entry);
      row.line.append(row.name, row.done, row.chip);
    }
    const has = step.total === null ? items.has(step.id) : step.total !== 1;
    setChip(row.chip, step.status);
    put(row.done, has ? `${counted(step.done)} of ${step.total === null ? "?" : counted(step.total)}` : "");
    if (has && row.bar === null) {
      row.bar = make("progress", { "aria-label": `Items of ${onLine(step.id)}` });
      row.summary.append(row.name, row.done, row.chip, row.bar);
      row.entry.replaceChildren(row.details);
    }
    if (row.bar !== null && step.total) {
      row.bar.max = step.total;
      row.bar.value = step.done;
    }
  };

  const itemOf = (event) => {
    const known = items.get(event.step) ?? items.set(event.step, new Map()).get(event.step);
    const key = event.key ?? event.item ?? "";
    const found = known.get(key) ?? { key, status: "running", seconds: null };
    known.delete(key);
    known.set(key, found); // the latest are the last
    if (known.size > MOST_ITEMS) {
      const old = [...known.values()].find((one) => one.status !== "running") ?? known.values().next().value;
      known.delete(old.key);
    }
    return found;
  };
  const showItems = (step) => {
    const row = stepRows.get(step), known = items.get(step);
    if (row === undefined || !row.details.open) return;
    const shown = [...(known?.values() ?? [])].reverse().map((one) =>
      make("li", {}, make("span", { class: "name text" }, onLine(one.key)), make("span", { class: "took" }, took(one.seconds)), chipOf(one.status)),
    );
    const note = known && known.size >= MOST_ITEMS ? [make("li", { class: "soft" }, `The latest ${MOST_ITEMS} items`)] : [];
    row.list.replaceChildren(...note, ...(shown.length ? shown : [make("li", { class: "soft" }, "No items so far.")]));
  };

  const secondsNow = () => status.seconds + (isOver() || !isConnected ? 0 : (performance.now() - statusAt) / 1000);
  const showTime = () => {
    if (status === null) return;
    put($("time"), long(secondsNow()));
    for (const card of cards) card.showLeft();
  };

  const openCards = () => cards.filter((card) => card.isOpen);
  const showWalk = () => {
    const open = openCards(), at = open.indexOf(selected);
    $("walk").hidden = open.length < 2;
    put($("at"), `${at < 0 ? "–" : at + 1} of ${open.length}`);
    $("previous").disabled = at <= 0;
    $("next").disabled = at === open.length - 1;
  };
  const showCounts = () => {
    const open = openCards().length;
    put($("question-count"), counted(open));
    $("question-count").className = open ? "count some" : "count";
    showWalk();
    $("no-questions").hidden = cards.length > 0;
    $("keys").hidden = !open || !mayAnswer;
    $("notify").hidden = !canNotify || !mayAnswer || isOver();
    if (!open) notice?.close();
    $("clear").hidden = !cards.some((card) => card.state === "decided");
    put($("call-count"), counted(callsMade));
    $("no-calls").hidden = calls.size > 0;
    $("no-texts").hidden = texts.size > 0;
    $("calls-left").hidden = callsMade <= calls.size;
    putProse($("calls-left"), `The latest ${counted(calls.size)} calls; \`aish runs show\` has all.`);
    put($("past-count"), counted(past.size));
    $("no-past").hidden = past.size > 0;
    const ofServer = status !== null && isServer(status.run);
    for (const [id, known] of [["texts", texts], ["calls", calls], ["steps", stepRows], ["past", past]]) {
      $(id).closest("section").hidden = ofServer && known.size === 0; // a server may never have any
    }
    $("past-left").hidden = past.size <= MOST_PAST;
    putProse($("past-left"), `The latest ${counted(MOST_PAST)} answers; \`aish runs pending --format json\` has all.`);
    const state = status === null ? "" : ` · ${$("state").textContent}`;
    const name = status === null ? "aish" : onLine(status.pipeline);
    document.title = `${open ? `(${open}) ` : ""}${name}${state}`;
  };

  // At once, and then at most five times a second.
  let statusTimer = null, isStale = false;
  const refreshStatus = async () => {
    isStale = true;
    if (statusTimer !== null) return;
    isStale = false;
    statusTimer = setTimeout(() => {
      statusTimer = null;
      if (isStale) refreshStatus();
    }, 200);
    try {
      const found = await json("status");
      if (!isOver() || found.state === status.state) takeStatus(found);
    } catch (error) {
      report(error); // the stream of events ends for the same reason, and shows it
    }
  };
  const takeStatus = (found) => {
    status = found;
    statusAt = performance.now();
    showStatus();
  };

  // ---- Texts and calls ------------------------------------------------------------------------

  const changed = new Set();
  let isDrawing = false;
  const draw = (one) => {
    changed.add(one);
    if (isDrawing) return;
    isDrawing = true;
    requestAnimationFrame(() => {
      isDrawing = false;
      for (const each of changed) each.show();
      changed.clear();
    });
  };

  class ModelText {
    constructor(event) {
      this.text = "";
      this.model = "";
      this.isDone = false;
      this.body = make("pre", { class: "text", tabindex: "0", "aria-label": `Answer of ${place(event) || "the model"}` });
      this.about = make("span", { class: "took" });
      const where = make("span", { class: "name text" }, place(event) || "model");
      this.element = make("article", { class: "card model-text", "aria-label": `Answer of ${place(event) || "the model"}` }, make("div", { class: "line" }, where, this.about), this.body);
      $("texts").prepend(this.element);
    }

    show() {
      const isAtEnd = this.body.scrollTop + this.body.clientHeight >= this.body.scrollHeight - 30;
      const cut = Math.max(0, this.text.length - LONGEST_TEXT);
      const shown = visible(cut ? this.text.slice(cut) : this.text);
      put(this.body, cut ? `[the first ${counted(cut)} characters are not shown]\n${shown}` : shown);
      put(this.about, this.isDone ? this.model : "writing …");
      if (isAtEnd && !this.isDone) this.body.scrollTop = this.body.scrollHeight;
    }
  }
  const textOf = (event) => {
    const key = placeKey(event, event.turn);
    let found = texts.get(key);
    if (found === undefined) {
      found = new ModelText(event);
      texts.set(key, found);
      if (texts.size > MOST_TEXTS) {
        const [old, one] = texts.entries().next().value;
        one.element.remove();
        texts.delete(old);
      }
      showCounts();
    }
    return found;
  };

  class ToolCall {
    constructor(event) {
      this.tool = event.tool;
      this.state = "running";
      this.arguments = undefined;
      this.result = null;
      this.output = "";
      this.seconds = null;
      this.rule = "";
      this.chip = make("span", { class: "chip" });
      this.took = make("span", { class: "took" });
      const where = make("small", { class: "text" }, place(event));
      const name = make("span", { class: "name mono text" }, onLine(event.tool), where);
      this.body = make("div", { class: "body" });
      this.details = make("details", { on: { toggle: () => this.show() } }, make("summary", {}, name, this.took, this.chip), this.body);
      this.element = make("div", { class: "entry" }, this.details);
      $("calls").prepend(this.element);
    }

    show() {
      setChip(this.chip, this.state);
      put(this.took, took(this.seconds));
      if (!this.details.open) return;
      const parts = [];
      const add = (title, text) => parts.push(make("h3", {}, title), make("pre", { class: "text", tabindex: "0", "aria-label": title }, bounded(text)));
      if (this.rule) parts.push(make("p", { class: "soft text" }, `Decided: ${onLine(this.rule)}`));
      if (this.arguments !== undefined) add("Arguments", JSON.stringify(this.arguments, null, 2));
      if (this.result !== null) add("Result", this.result);
      else if (this.output) add("Output so far", this.output);
      this.body.replaceChildren(...parts);
    }
  }
  const bounded = (text) => {
    const shown = visible(text.slice(0, LONGEST_BODY));
    return text.length > LONGEST_BODY ? `${shown}\n[${counted(text.length - LONGEST_BODY)} more characters are not shown]` : shown;
  };
  const callOf = (event) => {
    const key = placeKey(event, event.turn, event.call);
    let found = calls.get(key);
    if (found === undefined) {
      found = new ToolCall(event);
      calls.set(key, found);
      callsMade += 1;
      if (calls.size > MOST_CALLS) {
        const [old, one] = calls.entries().next().value;
        one.element.remove();
        calls.delete(old);
      }
      showCounts();
    }
    return found;
  };

  // ---- Past answers ---------------------------------------------------------------------------

  const ENDS = { approved: ["approved", "ok"], denied: ["denied", "bad"], expired: ["expired", ""], withdrawn: ["withdrawn", ""] };
  const WAYS = { page: "the page", command: "`aish approve`", api: "the API", terminal: "the terminal", rule: "a rule" };
  const howEnded = (question) => {
    const given = question.answer;
    if (question.state === "expired") return "nobody answered in time";
    if (question.state === "withdrawn") return "the call was cancelled, or the run has ended";
    if (given === null) return "";
    return `by ${onLine(given.by)}, from ${WAYS[given.way] ?? onLine(given.way)}, ${clock(given.time)}`;
  };
  const remember = (question) => {
    if (past.has(question.id)) return;
    past.set(question.id, question);
    const [word, kind] = ENDS[question.state] ?? [onLine(question.state), ""];
    const chip = make("span", { class: kind ? `chip ${kind}` : "chip" }, word);
    const about = [place(question), howEnded(question)].filter(Boolean).join(" · ");
    const name = make("span", { class: "name mono text" }, onLine(question.tool), make("small", { class: "text" }, ...prose(about)));
    if (question.answer?.note) name.append(make("small", { class: "text" }, `Note: ${onLine(question.answer.note)}`));
    $("past").prepend(make("div", { class: "entry" }, make("div", { class: "line" }, name, chip)));
    if ($("past").children.length > MOST_PAST) $("past").lastElementChild.remove();
    showCounts();
  };

  // ---- Questions ------------------------------------------------------------------------------

  const columns = () => {
    const probe = make("div", { class: "row mono" }, make("span", {}, "0".repeat(10)));
    const box = make("div", { class: "card question" }, make("div", { class: "arguments" }, probe));
    $("cards").append(box);
    const one = probe.firstChild.getBoundingClientRect().width / 10;
    const style = getComputedStyle(probe);
    const room = probe.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
    box.remove();
    return Math.min(Math.max(Math.floor(room / one), 20), 120) || 80;
  };

  let selected = null;
  const select = (card) => {
    if (selected === card) return;
    selected?.unstage();
    selected?.element.classList.remove("current");
    selected = card;
    card?.element.classList.add("current");
    showWalk();
  };
  // The buttons stay at the lower edge: a card is seen where they are visible, and some of it above
  // them or its end, which is below them.
  const look = (part, threshold, bottom) =>
    new IntersectionObserver((entries) => {
      for (const entry of entries) {
        cards.find((card) => card[part] === entry.target)?.onVisible(part, entry.isIntersecting);
      }
    }, { threshold, rootMargin: `-88px 0px ${bottom} 0px` });
  const looks = { actions: look("actions", 0.5, "0px"), element: look("element", 0, "-25%"), end: look("end", 0, "0px") };

  const LABELS = { where: "Where", server: "Server", tool: "Tool", why: "Reason", beware: "Beware", hidden: "Hidden" };
  let numbers = 0;

  class Card {
    constructor(call) {
      this.call = call;
      this.id = call.id;
      this.state = "open";
      this.isArmed = false; // visible for long enough
      this.inView = new Set();
      this.isRead = false; // the end of its arguments was visible
      this.isOpened = !call.folded; // all rows were shown
      this.callerWaits = call.caller_waiting;
      this.staged = null;
      this.sent = null;
      this.problem = "";
      this.timer = this.stageTimer = null;
      this.build();
      $("cards").append(this.element);
      for (const [part, each] of Object.entries(looks)) each.observe(this[part]);
      this.update();
    }

    get isOpen() {
      return this.state !== "decided";
    }

    get isSeen() {
      return this.inView.has("actions") && (this.inView.has("element") || this.inView.has("end"));
    }

    build() {
      const { call } = this, title = `question-${(numbers += 1)}`;
      const name = call.facts.find(([label]) => label === "tool")?.[1];
      const server = call.facts.find(([label]) => label === "server")?.[1];
      this.tool = call.tool;
      this.ofProgram = name === undefined;
      this.title = this.ofProgram ? "Another program asks" : server === undefined ? onLine(name) : `${server}__${name}`;
      this.left = make("span", { class: "left" });
      const facts = make("dl", { class: "facts" }), details = make("dl", { class: "facts" });
      const fact = (label, value, kind, list = facts) => list.append(make("dt", {}, label), make("dd", { class: `text ${kind ?? ""}` }, ...(label === LABELS.why ? prose(value) : [value])));
      for (const [label, value] of call.facts) fact(LABELS[label] ?? label, value, label === "beware" ? "warn" : "");
      const until = call.expires === null ? "" : `, open until ${clock(call.expires)}`;
      fact("Asked", `${clock(call.asked)}${until}`, "", details);
      this.caller = make("span", {});
      fact("Caller", this.caller, "", details);
      fact("Digest", call.digest, "digest mono", details);
      this.details = make("details", { class: "note", on: { toggle: () => rearmBelow(this) } }, make("summary", {}, "Details"), details);
      this.end = make("div", { class: "end" });
      if (call.always !== null) fact("Always", `adds the rule auto_approve ${call.always} to this run`);
      this.rows = make("div", { class: "arguments mono" });
      this.rowsLabel = make("p", { class: "arguments-label", id: `${title}-rows` });
      this.rows.setAttribute("role", "group");
      this.rows.setAttribute("aria-labelledby", `${title}-rows`);
      // It keeps its place: no button moves when all rows are shown.
      this.openAll = make("button", { type: "button", class: "button open-all", hidden: !this.call.folded, on: { click: () => this.openRows() } });
      this.showRows();
      this.note = make("textarea", { id: `${title}-note`, maxlength: "2000", rows: "2" });
      const label = make("label", { for: `${title}-note` }, "Recorded with the answer; a no also tells it to the model");
      this.noteBox = make("details", { class: "note", on: { toggle: () => rearmBelow(this) } }, make("summary", {}, "Add a note"), label, this.note);
      const button = (kind, text) =>
        make("button", { type: "button", class: `button ${kind}`, "aria-describedby": `${title}-why`, on: { click: (event) => this.onClick(kind, event) } }, text);
      this.buttons = { approve: button("approve", "Approve"), deny: button("deny", "Deny") };
      if (call.always !== null) this.buttons.always = button("always", "Always approve");
      this.actions = make("div", { class: call.always === null ? "actions" : "actions three" }, ...Object.values(this.buttons));
      this.why = make("p", { class: "why", id: `${title}-why` });
      this.foot = make("div", { class: "foot" }, this.openAll, this.actions, this.why);
      const head = make("div", { class: "question-head" }, make("h3", { id: title, class: "text" }, this.title), this.left);
      this.element = make(
        "article",
        { class: "card question", tabindex: "-1", "aria-labelledby": title, on: { focusin: () => this.isOpen && select(this) } },
        head, facts, this.rowsLabel, this.rows, this.details, this.noteBox, this.foot, this.end,
      );
    }

    showRows() {
      const { rows, label, problem } = this.call;
      if (rows === null) {
        put(this.rowsLabel, "arguments");
        this.rows.replaceChildren(make("div", { class: "row" }, problem));
        return;
      }
      const continued = new Set(this.call.continued);
      const row = (index) => make("div", { class: continued.has(index) ? "row continued" : "row" }, rows[index]);
      const range = (from, to) => Array.from({ length: to - from }, (_, offset) => row(from + offset));
      if (this.isOpened) {
        put(this.rowsLabel, `${label}:`);
        this.rows.replaceChildren(...range(0, rows.length));
        put(this.openAll, "Go to the end");
        return;
      }
      const left = rows.length - HEAD_ROWS - TAIL_ROWS;
      put(this.rowsLabel, `${label}, in ${many(rows.length, "row")}:`);
      const gap = make("div", { class: "gap" }, `${many(left, "row")} not shown`);
      this.rows.replaceChildren(...range(0, HEAD_ROWS), gap, ...range(rows.length - TAIL_ROWS, rows.length));
      put(this.openAll, `Show all ${many(rows.length, "row")}`);
    }

    goToEnd() {
      this.element.scrollIntoView({ block: "end" });
    }

    openRows() {
      if (this.isOpened) {
        this.goToEnd();
        return;
      }
      this.isOpened = true;
      this.isRead = false;
      looks.end.unobserve(this.end);
      looks.end.observe(this.end);
      this.showRows();
      this.rearm();
      rearmBelow(this);
      this.element.focus({ preventScroll: true });
      announce(`All ${many(this.call.rows.length, "row")} are shown`);
    }

    // Visible for half a second, without having moved: then a press is meant for this card.
    onVisible(part, isVisible) {
      if (isVisible) this.inView.add(part);
      else this.inView.delete(part);
      if (part === "end" && isVisible && !this.isRead) {
        this.isRead = true;
        this.update();
      }
      this.watch();
    }

    watch() {
      // At the lower edge the buttons of one card take the place of those of another.
      if (!this.isSeen || document.hidden) {
        clearTimeout(this.timer);
        this.timer = null;
        if (this.isArmed) this.disarm();
      } else if (!this.isArmed && this.timer === null) {
        this.timer = setTimeout(() => {
          this.timer = null;
          this.isArmed = true;
          this.update();
        }, VISIBLE_MS);
      }
    }

    disarm() {
      clearTimeout(this.timer);
      this.timer = null;
      this.isArmed = false;
      this.unstage();
      this.update();
    }

    rearm() {
      if (!this.isOpen) return;
      this.disarm();
      this.watch();
    }

    update() {
      if (!this.isOpen) return;
      const can = this.state === "open" && isConnected && mayAnswer && !isOver();
      const canApprove = can && this.isArmed && this.isOpened && this.isRead && this.call.rows !== null;
      if (!canApprove) this.unstage();
      for (const [kind, button] of Object.entries(this.buttons)) {
        button.disabled = !(kind === "deny" ? can && this.isArmed : canApprove);
        const text = { approve: "Approve", deny: "Deny", always: "Always approve" }[kind];
        put(button, this.staged === kind ? "Press Enter" : text);
        button.classList.toggle("staged", this.staged === kind);
      }
      const [waits, later] = isServer(this.call.run)
        ? ["the call waits, or its client is told to make it again", "nobody waits now; the answer counts when the client makes the call again"]
        : ["the call waits for this answer", "nobody waits now; the answer counts when the run is resumed"];
      put(this.caller, this.ofProgram ? "the program waits for this answer" : this.callerWaits ? waits : later);
      const why = this.reason();
      putProse(this.why, why);
      this.why.classList.toggle("bad", why !== "" && why === this.problem);
      this.showLeft();
    }

    reason() {
      if (isOver()) return "The run has ended: `aish approve` answers this question";
      if (!isConnected) return "No answers while the connection is lost";
      if (!mayAnswer) return "This link may only look";
      if (this.state === "sending") return "Sending …";
      if (this.staged !== null) return "Press Enter to send the answer, Escape to go back";
      if (this.problem) return this.problem;
      if (this.call.rows === null) return "Without its arguments a call can only be denied";
      if (!this.isOpened) return "Show all rows before you approve";
      return this.isRead ? "" : "Read to the end before you approve";
    }

    showLeft() {
      if (!this.isOpen || this.call.expires === null) return;
      const seconds = (Date.parse(this.call.expires) - Date.now() - skew) / 1000;
      put(this.left, seconds > 0 ? `${long(seconds)} left` : "time is up");
      this.left.classList.toggle("soon", seconds < 120);
    }

    stage(kind) {
      if (this.buttons[kind] === undefined || this.buttons[kind].disabled) return;
      this.staged = kind;
      this.stageTimer = setTimeout(() => this.unstage(true), STAGED_MS);
      this.update();
      announce(`Press Enter to ${kind === "always" ? "always approve" : "approve"} ${this.title}`);
    }

    unstage(show = false) {
      if (this.staged === null) return;
      clearTimeout(this.stageTimer);
      this.staged = null;
      if (show) this.update();
    }

    confirm() {
      const kind = this.staged;
      this.unstage();
      if (kind !== null && !this.buttons[kind].disabled) this.answer(kind);
    }

    // A click without a pointer comes from the keyboard, where a yes takes two.
    onClick(kind, event) {
      if (!event.isTrusted || this.buttons[kind].disabled) return;
      if (kind === "deny" || event.detail > 0) this.answer(kind);
      else if (this.staged === kind) this.confirm();
      else this.stage(kind);
    }

    answer(kind) {
      if (this.state === "open") this.sent = this.send(kind);
    }

    async send(kind) {
      this.state = "sending";
      this.problem = "";
      this.update();
      const note = this.note.value.trim();
      const body = { answer: kind, digest: this.call.digest, way: "page", ...(note ? { note } : {}) };
      try {
        this.settle(await json(`approvals/${this.id}`, { body }), true);
      } catch (error) {
        await this.failed(error);
      }
    }

    async failed(error) {
      if (error instanceof Refused && (error.status === 409 || error.status === 410)) {
        try {
          this.settle(await json(`approvals/${this.id}`));
          return;
        } catch (again) {
          report(again); // shown is why the answer was refused
        }
      }
      report(error);
      if (!this.isOpen) return;
      this.state = "open";
      this.problem = error instanceof Refused ? visible(error.message) : "The connection was lost: the answer may not have arrived";
      this.update();
      if (error instanceof Refused && error.status === 401) signOut(error.message);
      else if (!(error instanceof Refused)) reconnect();
    }

    // It keeps its height: no other card moves.
    settle(question, isMine = false) {
      if (!this.isOpen || question.state === "open") return;
      this.unstage();
      this.state = "decided";
      clearTimeout(this.timer);
      this.unobserve();
      const [word, kind] = ENDS[question.state] ?? [onLine(question.state), ""];
      const hadFocus = this.element.contains(document.activeElement);
      this.element.style.minHeight = `${this.element.getBoundingClientRect().height}px`;
      const said = `${word[0].toUpperCase()}${word.slice(1)}${isMine ? " by you" : ""}`;
      const note = question.answer?.note ? `. Note: ${onLine(question.answer.note)}` : "";
      const outcome = make("p", { class: "outcome text" }, said, make("span", { class: "soft" }, ...prose(` · ${howEnded(question)}`), note));
      this.noteBox.hidden = true;
      this.foot.replaceWith(outcome);
      put(this.left, "");
      put(this.caller, kind ? "has the answer" : "does not wait any more");
      this.element.classList.add("decided", ...(kind ? [kind] : []));
      remember(question);
      announce(`${this.title}: ${said}`);
      if (selected === this) {
        select(openCards()[0] ?? null);
        selected?.rearm(); // a key that was meant for this card is not for the next
      }
      if (hadFocus) this.element.focus({ preventScroll: true });
      showCounts();
    }

    leave() {
      clearTimeout(this.timer);
      this.unstage();
      this.unobserve();
      this.element.remove();
      if (selected === this) select(null);
    }

    unobserve() {
      for (const [part, each] of Object.entries(looks)) each.unobserve(this[part]);
    }
  }

  const rearmBelow = (card) => {
    for (const other of cards.slice(cards.indexOf(card) + 1)) other.rearm();
  };
  const clearDecided = () => {
    for (const card of cards.filter((one) => !one.isOpen)) {
      cards.splice(cards.indexOf(card), 1);
      card.leave();
    }
    for (const card of cards) card.rearm(); // they have moved
    showCounts();
  };
  const updateCards = () => {
    for (const card of cards) card.update();
  };
  let announced = 0;
  const announce = (text) => {
    $("announce").textContent = (announced += 1) % 2 ? text : `${text}\u00a0`; // said again, too
  };

  // One after another: cards stand in the order in which they were asked.
  let queue = Promise.resolve();
  const inTurn = (act) => {
    const connection = aborting;
    queue = queue.then(act).catch((error) => {
      report(error);
      if (error instanceof Refused && error.status === 401) signOut(error.message);
      // If the run has ended, the last of its events is about to come.
      else if (!(error instanceof Refused && error.status === 404)) setTimeout(() => connection.abort(), 1000);
    });
    return queue;
  };
  const addCard = async (id) => {
    if (past.has(id) || cards.some((card) => card.id === id)) return;
    const call = await json(`approvals/${id}/call?columns=${columns()}`);
    if (call.state !== "open") {
      remember(await json(`approvals/${id}`));
      return;
    }
    if (cards.length && !openCards().length) clearDecided(); // nothing that is open moves
    const card = new Card(call);
    cards.push(card);
    if (selected === null) select(card);
    announce(`A call waits for an answer: ${card.title}`);
    showCounts();
    notify(card);
    goToWanted();
  };
  const goToWanted = () => {
    const card = cards.find((one) => one.isOpen && one.id === wanted);
    if (card === undefined) return;
    wanted = null;
    select(card);
    card.element.scrollIntoView({ block: "start" });
    card.element.focus({ preventScroll: true });
  };
  const STATE_OF = { approve: "approved", always: "approved", deny: "denied", expired: "expired", withdrawn: "withdrawn" };
  const endCard = async (event) => {
    if (past.has(event.id)) return;
    const card = cards.find((one) => one.id === event.id);
    if (card === undefined) {
      const question = await json(`approvals/${event.id}`);
      if (question.state !== "open") remember(question);
      return;
    }
    await card.sent; // if it is the answer of this page, that is told with it
    // A run may end with its last answer: it is shown without asking for it.
    const { by, way, note, time } = event;
    const { id, tool } = card;
    card.settle({ id, tool, step: event.step, item: event.item, state: STATE_OF[event.answer], answer: { by, way, note, time } });
  };
  const endAsk = async (id) => {
    const card = cards.find((one) => one.id === id);
    await card?.sent;
    const question = await json(`approvals/${id}`);
    if (card === undefined) remember(question);
    else card.settle(question);
  };
  const takeQuestions = async (found) => {
    for (const question of found.decided) {
      const card = cards.find((one) => one.id === question.id);
      if (card?.isOpen) card.settle(question);
      else remember(question);
    }
    for (const question of found.pending) {
      const card = cards.find((one) => one.id === question.id);
      if (card !== undefined) card.callerWaits = question.caller_waiting;
      else await addCard(question.id);
    }
    const known = new Set([...found.pending, ...found.decided].map((question) => question.id));
    for (const card of cards.filter((one) => one.isOpen && !known.has(one.id))) {
      cards.splice(cards.indexOf(card), 1);
      card.leave();
    }
    if (wanted !== null) {
      announce("The question of this link is not open any more");
      wanted = null;
    }
    showCounts();
  };

  // ---- The fold -------------------------------------------------------------------------------

  const REFRESHES = new Set([
    "run.started", "run.finished", "step.started", "step.finished", "item.finished", "turn.finished",
    "approval.asked", "approval.answered", "ask_received", "ask_ended",
  ]);
  const PURPOSES = { summary: "summary", sampling: "asked by a server", judge: "judging" };

  const fold = (event, isLive) => {
    if (typeof event.seq === "number" && (last === null || event.seq > last)) last = event.seq;
    switch (event.type) {
      case "run.started":
        isStopping = false;
        break;
      case "notice":
        if (event.code !== "interrupted") break;
        isStopping = true;
        showStatus();
        break;
      case "item.started":
        itemOf(event).status = "running";
        break;
      case "item.finished":
        Object.assign(itemOf(event), { status: event.status, seconds: event.seconds });
        break;
      case "text.delta": {
        const found = textOf(event);
        found.text += event.text;
        draw(found);
        break;
      }
      case "text.withdrawn": {
        const found = texts.get(placeKey(event, event.turn));
        if (found !== undefined) {
          found.text = "";
          draw(found);
        }
        break;
      }
      case "turn.finished": {
        const known = texts.get(placeKey(event, event.turn));
        if (event.text || known !== undefined) {
          const found = known ?? textOf(event);
          const purpose = PURPOSES[event.purpose];
          found.text = event.text;
          found.model = [onLine(event.model), purpose, took(event.seconds)].filter(Boolean).join(" · ");
          found.isDone = true;
          draw(found);
        }
        break;
      }
      case "tool.decided": {
        const found = callOf(event);
        found.arguments = event.arguments;
        found.rule = `${event.verdict}, ${event.rule}`;
        found.state = { deny: "denied", "ask-no": "denied", staged: "staged" }[event.verdict] ?? "running";
        draw(found);
        break;
      }
      case "tool.started":
        callOf(event).state = "running";
        draw(callOf(event));
        break;
      case "tool.output": {
        const found = callOf(event);
        found.output = (found.output + event.text).slice(-LONGEST_TEXT);
        draw(found);
        break;
      }
      case "tool.finished": {
        const found = callOf(event);
        found.state = event.kind;
        found.result = event.content;
        found.seconds = event.seconds;
        draw(found);
        break;
      }
      case "approval.asked":
        inTurn(() => addCard(event.id));
        break;
      case "approval.answered":
        inTurn(() => endCard(event));
        break;
      case "ask_received":
        inTurn(() => addCard(event.request_id));
        break;
      case "ask_ended":
        inTurn(() => endAsk(event.request_id));
        break;
      case "step.finished": {
        const found = event.item === undefined && status?.steps.find((one) => one.id === event.step);
        if (found) found.status = event.status;
        break;
      }
      case "run.finished": // the server ends with it, and cannot be asked any more
        for (const card of cards) card.callerWaits = false;
        if (status === null || !isLive) break;
        status = { ...status, seconds: secondsNow(), state: event.status === "paused" ? "paused" : "finished", exit: event.exit };
        showStatus();
        updateCards();
        break;
    }
    if (event.type.startsWith("item.")) showItems(event.step);
    if (isLive && REFRESHES.has(event.type)) refreshStatus();
  };

  // ---- Notifications --------------------------------------------------------------------------

  // Only where somebody pressed the button and does not see the page; arguments are not among them.
  let canNotify = "Notification" in window && isSecureContext;
  let notifies = false;
  let notice = null;
  const setNotifies = (value) => {
    notifies = value;
    $("notify").setAttribute("aria-pressed", value);
  };
  const allowsNone = () => {
    canNotify = false;
    setNotifies(false);
    $("notify").hidden = true;
    $("notify-problem").hidden = false;
    put($("notify-problem"), "The browser allows no notifications of this page.");
  };
  $("notify").addEventListener("click", async () => {
    if (notifies) setNotifies(false);
    else if ((await Notification.requestPermission()) === "granted") setNotifies(true);
    else allowsNone();
  });
  const notify = (card) => {
    if (!notifies || !document.hidden) return;
    const open = openCards().length;
    const title = `${onLine(status.pipeline)}: ${many(open, "question")} ${open === 1 ? "waits" : "wait"} for an answer`;
    try {
      notice = new Notification(title, { body: card.title, tag: status.run }); // in place of the one before
    } catch {
      allowsNone(); // some browsers show them for installed pages only
      return;
    }
    notice.addEventListener("click", () => {
      window.focus();
      wanted = card.id;
      goToWanted();
    });
  };

  // ---- The connection -------------------------------------------------------------------------

  let aborting = new AbortController();
  let heard = 0;
  const reconnect = () => aborting.abort();

  const setConnection = (kind, text) => {
    isConnected = kind === "on";
    $("connection").className = kind ? `connection ${kind}` : "connection";
    put($("connection"), text);
    updateCards();
    showTime();
  };

  const load = async (signal) => {
    const found = await json("status", { signal });
    if (status !== null && status.run !== found.run) forget();
    takeStatus(found);
    $("sign-in").hidden = true;
    $("content").hidden = false;
    setConnection("on", isOver() ? "Connected; the run has ended" : "Connected");
    await inTurn(async () => takeQuestions(await json("approvals", { signal })));
    for (;;) {
      const path = last === null ? "events" : `events?after=${last}`;
      const { events, next } = await json(path, { signal });
      for (const event of events) fold(event, false);
      last = next;
      if (events.length < 500) break; // the stream brings the rest
    }
    await queue;
    updateCards();
  };

  const stream = async (signal) => {
    const response = await request(`events?after=${last}`, { accept: "text/event-stream", signal });
    const reader = response.body.getReader();
    const decoder = new TextDecoder();
    let rest = "";
    heard = performance.now();
    for (;;) {
      const { done, value } = await network(reader.read());
      if (done) return;
      heard = performance.now();
      const parts = (rest + decoder.decode(value, { stream: true })).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        const data = part.split("\n").filter((line) => line.startsWith("data: ")).map((line) => line.slice(6));
        if (data.length) fold(JSON.parse(data.join("\n")), true);
      }
    }
  };

  // Waits, or less if the network or the reader is back.
  let wake = () => {};
  const pause = (milliseconds) =>
    new Promise((resolve) => {
      const timer = setTimeout(resolve, milliseconds);
      wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });

  const follow = async () => {
    let delay = FIRST_DELAY;
    for (;;) {
      aborting = new AbortController();
      try {
        if (isSignedOut) await signedIn();
        await load(aborting.signal);
        delay = FIRST_DELAY;
        await stream(aborting.signal);
        await queue;
      } catch (error) {
        report(error);
        if (error instanceof Refused) {
          if (error.status === 401 || error.status === 403) {
            signOut(token === null && error.status === 401 ? "" : error.message);
            continue;
          }
          if (error.code === "events_gone") forget();
        }
      }
      if (isSignedOut) continue;
      const why = isOver() ? "The run has ended; this is how it was left" : "Connection lost, trying again";
      setConnection(isOver() ? "" : "lost", why);
      await pause(delay);
      delay = Math.min(delay * 2, LONGEST_DELAY);
    }
  };

  // ---- Who looks ------------------------------------------------------------------------------

  let isSignedOut = false;
  let onSignedIn = () => {};
  const signedIn = () => new Promise((resolve) => (onSignedIn = resolve));
  const signOut = (reason) => {
    token = null;
    isSignedOut = true;
    $("content").hidden = true;
    $("sign-in").hidden = false;
    putProse($("sign-in-reason"), reason ? `${visible(reason)}.` : "`aish control open RUN` prints a link to this page that can be used once.");
    setConnection("", "Not connected");
    put($("state"), "no access");
    $("state").className = "chip";
    reconnect();
  };
  const signIn = (value, scopes, expires) => {
    token = value;
    tokenEnds = expires === null ? 0 : Date.parse(expires);
    mayAnswer = scopes === null || scopes.includes("answer");
    isSignedOut = false;
    onSignedIn();
  };
  const redeem = async (code) => {
    const found = await json("link", { body: { code }, isPublic: true });
    signIn(found.token, found.scopes, found.expires);
  };

  $("sign-in-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    const given = $("credential").value.trim();
    const code = new URLSearchParams(given.split("#")[1] ?? "").get("code") ?? given;
    $("credential").value = "";
    if (!code) return;
    try {
      await redeem(code);
    } catch (error) {
      report(error);
      // No code of a link; it may be a token of the file.
      if (error instanceof Refused && error.status === 401 && /^[A-Za-z0-9._~+/=-]{32,}$/.test(given)) signIn(given, null, null);
      else putProse($("sign-in-reason"), error instanceof Refused ? `${visible(error.message)}.` : "The server cannot be reached.");
    }
  });

  // The code leaves the address at once: it is in no history, and in no bookmark.
  const takeFragment = async () => {
    const given = new URLSearchParams(location.hash.slice(1));
    const code = given.get("code");
    wanted = given.get("question") ?? wanted;
    goToWanted();
    if (code === null) return;
    history.replaceState(null, "", location.pathname + (wanted ? `#question=${encodeURIComponent(wanted)}` : ""));
    try {
      await redeem(code);
      reconnect();
    } catch (error) {
      report(error);
      signOut(error instanceof Refused ? error.message : "The server cannot be reached");
    }
  };

  // ---- Keys and clocks ------------------------------------------------------------------------

  const current = () => {
    if (selected?.isOpen) return selected;
    const first = openCards()[0] ?? null;
    select(first);
    first?.rearm();
    return null; // what was pressed was meant for another card
  };
  const step = (by, isKey) => {
    const open = openCards();
    const at = open.indexOf(selected);
    const next = open[Math.min(Math.max(at + by, 0), open.length - 1)];
    if (next === undefined) return;
    select(next);
    if (isKey) next.element.focus({ preventScroll: true });
    next.element.scrollIntoView({ block: isKey ? "nearest" : "start" });
  };
  document.addEventListener("keydown", (event) => {
    const target = event.target instanceof Element ? event.target : document.body;
    const isTyping = target.closest("input, textarea") !== null;
    if (event.key === "Escape") {
      selected?.unstage(true);
      if (isTyping) target.blur();
      return;
    }
    if (isTyping || event.ctrlKey || event.metaKey || event.altKey || event.isComposing || !event.isTrusted) return;
    // A key that is held down is pressed once.
    if (event.repeat) {
      if (event.key === "Enter" || event.key === " ") event.preventDefault();
      return;
    }
    if (event.key === "Enter") {
      if (selected?.staged == null) return;
      event.preventDefault();
      selected.confirm();
      return;
    }
    if (event.key === "a" || event.key === "d") {
      const card = current();
      if (card === null) return;
      if (!card.isSeen || (event.key === "a" && !card.isRead)) card.goToEnd();
      else if (event.key === "a") card.stage("approve");
      else if (!card.buttons.deny.disabled) card.answer("deny");
    } else if (event.key === "j" || event.key === "k") {
      step(event.key === "j" ? 1 : -1, true);
    } else if (event.key !== "Shift" && event.key !== " ") {
      selected?.unstage(true);
    }
  });
  $("clear").addEventListener("click", clearDecided);
  $("previous").addEventListener("click", () => step(-1, false));
  $("next").addEventListener("click", () => step(1, false));

  setInterval(() => {
    if (tokenEnds && Date.now() + skew > tokenEnds && token !== null) signOut("The access of this link has expired");
    if (document.hidden) return;
    showTime();
    if (isConnected && !isOver() && performance.now() - heard > SILENT_MS) reconnect();
  }, 1000);
  const comeBack = () => {
    wake();
    if (isConnected && !isOver() && performance.now() - heard > SILENT_MS / 2) reconnect();
  };
  document.addEventListener("visibilitychange", () => {
    for (const card of cards) if (card.isOpen) card.watch();
    if (document.hidden) return;
    notice?.close();
    comeBack();
  });
  addEventListener("online", comeBack);
  addEventListener("offline", reconnect);
  addEventListener("hashchange", takeFragment);

  takeFragment().then(follow);
})();
