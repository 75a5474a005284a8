"use strict";
// What a browser with scripts adds: a theme button, and tables that can be searched, filtered,
// sorted and opened. Texts go in as text; the HTML of a body was escaped when it was made. What is
// chosen in a table stands in the address: #step-1?sort=-cost&state=failed;step-2?search=a
(() => {
  const NUMBERS = new Set(["number", "count", "cost", "seconds"]);
  const BAD = new Set(["failed", "error", "denied"]);
  const SIZE = 50;

  const make = (name, given = {}, ...children) => {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(given)) {
      if (key === "on") for (const [type, act] of Object.entries(value)) element.addEventListener(type, act);
      else if (value !== null && value !== undefined) element.setAttribute(key, value);
    }
    element.append(...children);
    return element;
  };
  const button = (title, act, given = {}) => make("button", { type: "button", ...given, on: { click: act } }, title);

  const took = (seconds) => {
    if (seconds === null) return "unknown";
    if (seconds < 1) return `${seconds.toFixed(2)} s`;
    if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
    const whole = Math.round(seconds), minutes = Math.floor(whole / 60);
    return minutes ? `${minutes} min ${whole % 60} s` : `${whole} s`;
  };
  const dollars = (cost) => (cost === null ? "–" : cost === 0 ? "$0" : cost < 0.01 ? `$${cost.toFixed(4)}` : `$${cost.toFixed(2)}`);
  const count = (number) => (number === null ? "–" : number.toLocaleString("en"));
  // Numbers in texts are compared as numbers.
  const padded = (text) => text.toLowerCase().replace(/\d+/g, (digits) => digits.padStart(15, "0"));

  // What the address says of each table.
  const places = () => new Map(location.hash.slice(1).split(";").map((part) => {
    const [anchor, query = ""] = part.split(/\?(.*)/s);
    return [anchor, query];
  }));
  const remember = (anchor, query) => {
    const kept = places();
    if (query) kept.set(anchor, query);
    else if (kept.get(anchor)) kept.set(anchor, "");
    const parts = [...kept].filter(([name]) => name).map(([name, one]) => (one ? `${name}?${one}` : name));
    history.replaceState(null, "", `#${parts.join(";")}`);
  };

  class Table {
    constructor(place) {
      this.place = place;
      this.anchor = place.dataset.items;
      const { noun, states, retry, columns } = JSON.parse(place.dataset.settings);
      Object.assign(this, { noun, states, retry });
      this.columns = columns.map(([id, title, kind, at, shown]) => ({ id, title, kind, at, shown }));
      this.rows = JSON.parse(document.getElementById(`${this.anchor}-rows`).textContent);
      this.words = null;
      this.blocks = new Map();
      this.orders = new Map();
      this.build();
      this.read();
    }

    // What is chosen, from the address: the columns, the state, values, the search, the order.
    read() {
      const query = new URLSearchParams(places().get(this.anchor) || "");
      const columns = query.getAll("column"), sort = query.get("sort") || "";
      this.shown = new Set(columns.length ? columns : this.columns.filter((one) => one.shown).map((one) => one.id));
      this.state = query.get("state") || "";
      this.values = query.getAll("value").map((one) => JSON.parse(one)).filter(([id]) => this.column(id));
      this.asked = query.get("search") || "";
      this.search.value = this.asked;
      const by = this.column(sort.replace(/^-/, ""));
      this.sort = by ? { by, down: sort.startsWith("-") } : null;
      this.refresh();
    }

    write() {
      const query = new URLSearchParams();
      const usual = this.columns.filter((one) => one.shown).map((one) => one.id);
      if (usual.length !== this.shown.size || usual.some((id) => !this.shown.has(id))) {
        for (const id of this.shown) query.append("column", id);
      }
      if (this.state) query.set("state", this.state);
      for (const one of this.values) query.append("value", JSON.stringify(one));
      if (this.asked) query.set("search", this.asked);
      if (this.sort) query.set("sort", (this.sort.down ? "-" : "") + this.sort.by.id);
      remember(this.anchor, query.toString());
    }

    change(act) { act(); this.write(); this.refresh(); }

    column(id) { return this.columns.find((one) => one.id === id); }

    build() {
      const plain = this.place.querySelector(".plain-items");
      const label = `Search ${this.noun}s`;
      this.search = make("input", {
        type: "search", placeholder: label, "aria-label": label,
        on: { input: () => this.change(() => { this.asked = this.search.value.trim().toLowerCase(); }) },
      });
      this.choices = make("div", { class: "choice", role: "group", "aria-label": "Status" });
      const at = this.columns.find((one) => one.kind === "state").at, counts = new Map();
      this.stateAt = at;
      for (const row of this.rows) counts.set(row[at], (counts.get(row[at]) || 0) + 1);
      const choose = (state, title) => this.choices.append(button(title,
        () => this.change(() => { this.state = state; }), { "data-state": state }));
      choose("", `All ${count(this.rows.length)}`);
      for (const [state, word] of Object.entries(this.states)) {
        if (counts.has(state)) choose(state, `${word} ${count(counts.get(state))}`);
      }
      this.chooser = make("details", { class: "columns" }, make("summary", {}, "Columns"),
        make("div", { role: "group", "aria-label": "Columns" }, ...this.columns.filter((one) => one.kind !== "key").map((one) => {
          one.box = make("input", { type: "checkbox", on: { change: () => this.change(() => {
            if (one.box.checked) this.shown.add(one.id);
            else this.shown.delete(one.id);
          }) } });
          return make("label", {}, one.box, one.title);
        })));
      this.chooser.addEventListener("keydown", (event) => {
        if (event.key !== "Escape" || !this.chooser.open) return;
        this.chooser.open = false;
        this.chooser.querySelector("summary").focus();
      });
      this.filters = make("div", { class: "filters", role: "group", "aria-label": "Values" });
      this.head = make("tr");
      this.body = make("tbody", { on: { keydown: (event) => this.move(event) } });
      this.told = make("span", { "aria-live": "polite" });
      this.back = button("← Previous", () => this.turn(-1));
      this.next = button("Next →", () => this.turn(1));
      plain.replaceWith(
        make("div", { class: "bar" }, this.search, this.choices, this.chooser),
        this.filters,
        make("div", { class: "sheet", tabindex: "0", role: "group", "aria-label": `${this.noun}s` },
          make("table", { class: "grid" }, make("thead", {}, this.head), this.body)),
        make("div", { class: "pager" }, this.back, this.next, this.told));
      for (const list of this.place.parentNode.querySelectorAll(":scope > .charts .bars")) this.offer(list);
    }

    // A click on a value of a chart chooses it.
    offer(list) {
      const { column } = list.dataset;
      for (const line of list.querySelectorAll("[data-value]")) {
        const name = line.querySelector(".name"), { value } = line.dataset;
        name.replaceChildren(button(name.textContent, () => this.filter(this.column(column), value)));
      }
    }

    filter(column, value) {
      this.change(() => {
        if (column.kind === "state") {
          [this.state] = Object.entries(this.states).find(([, word]) => word === value) || [value];
          return;
        }
        this.values = this.values.filter(([id]) => id !== column.id);
        this.values.push([column.id, value]);
      });
    }

    order(column) {
      this.change(() => {
        const first = NUMBERS.has(column.kind) && column.kind !== "number";
        if (!this.sort || this.sort.by !== column) this.sort = { by: column, down: first };
        else if (this.sort.down === first) this.sort.down = !first;
        else this.sort = null;
      });
    }

    refresh() {
      this.page = 0;
      for (const one of this.choices.children) one.setAttribute("aria-pressed", String(one.dataset.state === this.state));
      this.seen = this.columns.filter((one) => one.kind === "key" || this.shown.has(one.id));
      for (const one of this.columns) if (one.box) one.box.checked = this.shown.has(one.id);
      const focused = document.activeElement && document.activeElement.dataset.column;
      this.head.replaceChildren(...this.seen.map((one) => {
        const sorted = this.sort && this.sort.by === one ? (this.sort.down ? "descending" : "ascending") : null;
        return make("th", { scope: "col", class: `c-${one.kind}`, "aria-sort": sorted },
          button(one.title, () => this.order(one), { "data-column": one.id }));
      }));
      if (focused) [...this.head.querySelectorAll("button")].find((one) => one.dataset.column === focused)?.focus();
      this.filters.replaceChildren(...this.values.map((one) => button(
        `${this.column(one[0]).title}: ${one[1]} ✕`,
        () => { this.change(() => { this.values = this.values.filter((other) => other !== one); }); this.search.focus(); },
        { "aria-label": `Remove the filter ${this.column(one[0]).title}: ${one[1]}` })));
      if (this.asked && !this.words) {
        this.words = this.rows.map((row) => row.slice(0, -2).filter((one) => typeof one === "string").join(" ").toLowerCase());
      }
      const wanted = this.values.map(([id, value]) => [this.column(id).at, value]);
      const fits = (row, n) =>
        (!this.state || row[this.stateAt] === this.state)
        && (!this.asked || this.words[n].includes(this.asked))
        && wanted.every(([at, value]) => String(row[at]) === value);
      this.found = this.sort
        ? this.ordered(this.sort.by.at, this.sort.down).filter((n) => fits(this.rows[n], n)).map((n) => this.rows[n])
        : this.rows.filter(fits);
      this.show();
    }

    // The numbers of the rows in the order of a column, made when it is first sorted by it. Each is a
    // number of its rank and its place, which typed arrays sort without a call for each comparison.
    ordered(at, down) {
      const name = `${at} ${down}`, size = this.rows.length;
      if (!this.orders.has(name)) {
        // What is unknown stands last, whichever way it goes.
        const keys = Float64Array.from(this.ranked(at), (rank, n) => (rank < 0 ? size : down ? size - 1 - rank : rank) * size + n);
        this.orders.set(name, Array.from(keys.sort(), (key) => key % size));
      }
      return this.orders.get(name);
    }

    // The rank of each row by a column, -1 where there is no value: numbers before texts.
    ranked(at) {
      const values = this.rows.map((row) => {
        const value = row[at] ?? null;
        return value === null || typeof value === "number" ? value : padded(String(value));
      });
      const known = [...new Set(values)].filter((one) => one !== null);
      const numbers = Float64Array.from(known.filter((one) => typeof one === "number")).sort();
      const texts = known.filter((one) => typeof one !== "number").sort();
      const ranks = new Map([...numbers, ...texts].map((one, n) => [one, n]));
      return values.map((one) => ranks.get(one) ?? -1);
    }

    turn(pages) {
      this.page += pages;
      this.show();
      this.place.querySelector(".grid").scrollIntoView({ block: "start" });
    }

    show() {
      const first = this.page * SIZE, last = Math.min(first + SIZE, this.found.length);
      this.body.replaceChildren(...this.found.slice(first, last).map((row) => this.row(row)));
      this.told.textContent = this.found.length
        ? `${count(first + 1)}–${count(last)} of ${count(this.found.length)}` : `No ${this.noun} is like that`;
      this.back.disabled = this.page === 0;
      this.next.disabled = last === this.found.length;
      this.back.hidden = this.next.hidden = this.found.length <= SIZE;
    }

    row(row) {
      const line = make("tr", { class: "row" });
      let opener = null;
      line.append(...this.seen.map((column) => {
        const value = row[column.at] ?? null;
        const cell = make("td", { class: `c-${column.kind}`, "data-title": column.title });
        if (typeof value === "number" && column.kind !== "drawn") cell.classList.add("number");
        if (column.kind === "key") cell.append(opener = button(value, () => {}, { "aria-expanded": "false", title: value }));
        else cell.append(...this.content(column, value, row));
        return cell;
      }));
      line.addEventListener("click", () => {
        if (!String(window.getSelection())) this.toggle(line, row, opener);
      });
      return line;
    }

    content(column, value, row) {
      switch (column.kind) {
        case "state": return [make("span", { class: `chip ${value}` }, this.states[value] || value)];
        case "cost": return [dollars(value)];
        case "seconds": return [took(value)];
        case "number": case "count": return [count(value)];
        case "drawn": return this.drawn(column, row);
        case "value": {
          if (value === null) return [];
          const text = String(value);
          return [button(text, (event) => { event.stopPropagation(); this.filter(column, text); },
            { class: "value", tabindex: "-1", title: text, "aria-label": `${text}: show only ${column.title} ${text}` })];
        }
        default: return [make("span", { title: value }, value ?? "")];
      }
    }

    drawn(column, row) {
      const at = this.columns.filter((one) => one.kind === "drawn").indexOf(column);
      this.places ??= new Map(this.rows.map((one, n) => [one, n]));
      const cell = this.inert("drawn")[this.places.get(row)].children[at];
      return cell ? [document.importNode(cell, true)] : [];
    }

    // Arrow keys lead from row to row, and to the values of one: it is a single stop for Tab.
    move(event) {
      const line = event.target.closest("tr.row"), step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      const aside = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!line || !(step || aside)) return;
      const all = step ? [...this.body.querySelectorAll("tr.row")] : [...line.querySelectorAll("button")];
      const next = all[all.indexOf(step ? line : event.target) + (step || aside)];
      if (!next) return;
      event.preventDefault();
      (step ? next.querySelector("button") : next).focus();
    }

    toggle(line, row, opener) {
      const open = line.classList.toggle("open");
      opener.setAttribute("aria-expanded", String(open));
      if (!open) { line.nextElementSibling.remove(); return; }
      const cell = make("td", { colspan: this.seen.length });
      const [block, place] = row.slice(-2), body = this.inert(block)[place];
      cell.append(...(body && body.childNodes.length
        ? [...document.importNode(body, true).childNodes]
        : [make("p", { class: "quiet" }, `Nothing more is kept of this ${this.noun} here.`)]));
      if (this.retry && BAD.has(row[this.stateAt])) {
        cell.prepend(make("p", { class: "retry" }, "Try it again: ", make("code", {}, this.retry)));
      }
      line.after(make("tr", { class: "detail" }, cell));
    }

    // A block of bodies is read when the first of its rows is opened.
    inert(name) {
      if (!this.blocks.has(name)) {
        const data = document.getElementById(`${this.anchor}-${name}`).textContent;
        this.blocks.set(name, new DOMParser().parseFromString(data, "text/html").body.children);
      }
      return this.blocks.get(name);
    }
  }

  const root = document.documentElement;
  const kept = { get: () => null, set: () => {} };
  try {
    const store = window.localStorage;
    kept.get = () => store.getItem("aish-theme");
    kept.set = (theme) => store.setItem("aish-theme", theme);
  } catch { /* a file that may keep nothing */ }
  const THEMES = ["auto", "light", "dark"];
  const theme = make("button", { type: "button", class: "theme" });
  const dress = (name) => {
    if (name === "auto") delete root.dataset.theme;
    else root.dataset.theme = name;
    theme.textContent = `Theme: ${name}`;
    theme.dataset.now = name;
  };
  dress(THEMES.includes(kept.get()) ? kept.get() : "auto");
  theme.addEventListener("click", () => {
    const name = THEMES[(THEMES.indexOf(theme.dataset.now) + 1) % THEMES.length];
    dress(name);
    kept.set(name);
  });
  document.querySelector(".top").append(theme);

  const tables = [...document.querySelectorAll("[data-items]")].map((place) => new Table(place));
  document.addEventListener("keydown", (event) => {
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && tables.length) {
      event.preventDefault();
      tables[0].search.focus();
    }
  });
  const reveal = () => {
    const [anchor] = places().keys(), target = document.getElementById(anchor);
    if (target instanceof HTMLDetailsElement) target.open = true;
    if (target && location.hash !== `#${anchor}`) target.scrollIntoView();
  };
  window.addEventListener("hashchange", () => {
    // A link within the page leaves the tables as they are.
    for (const table of tables) location.hash.includes("?") ? table.read() : table.write();
    reveal();
  });
  reveal();
  let closed = [];
  window.addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details:not([open])")];
    for (const one of closed) one.open = true;
  });
  window.addEventListener("afterprint", () => { for (const one of closed) one.open = false; });
})();
