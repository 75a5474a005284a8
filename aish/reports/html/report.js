"use strict";
// What a browser with scripts adds: a theme button, and tables of items that can be searched,
// sorted and opened. Texts go in as text; the HTML of an item's body was escaped when it was made.
(() => {
  const STATES = ["ok", "failed", "error", "denied", "paused", "skipped", "cut_off"];
  const WORDS = { cut_off: "cut off" };
  const COLUMNS = [
    // name, title, place in a row of the data, is a number
    ["number", "#", 0, true],
    ["key", "Item", 1, false],
    ["state", "Status", 2, false],
    ["preview", "Answer or reason", 3, false],
    ["tokens", "Tokens", 4, true],
    ["cost", "Cost", 5, true],
    ["seconds", "Time", 6, true],
  ];
  const KEY = 1, STATE = 2, PREVIEW = 3, TOKENS = 4, COST = 5, SECONDS = 6, BLOCK = 9, PLACE = 10;

  const make = (name, given = {}, ...children) => {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(given)) {
      if (key === "on") for (const [type, act] of Object.entries(value)) element.addEventListener(type, act);
      else if (value !== null && value !== undefined) element.setAttribute(key, value);
    }
    element.append(...children);
    return element;
  };

  const took = (seconds) => {
    if (seconds === null) return "unknown";
    if (seconds < 1) return `${seconds.toFixed(2)} s`;
    if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
    const whole = Math.round(seconds), minutes = Math.floor(whole / 60);
    return minutes ? `${minutes} min ${whole % 60} s` : `${whole} s`;
  };
  const dollars = (cost) => (cost === null ? "–" : cost === 0 ? "$0" : cost < 0.01 ? `$${cost.toFixed(4)}` : `$${cost.toFixed(2)}`);
  const count = (number) => (number === null ? "–" : number.toLocaleString("en"));

  class Items {
    constructor(place) {
      this.place = place;
      this.anchor = place.dataset.items;
      this.rows = JSON.parse(document.getElementById(`${this.anchor}-rows`).textContent);
      this.found = this.rows;
      this.words = null;
      this.blocks = new Map();
      this.state = "";
      this.asked = "";
      this.sort = { by: 0, down: false };
      this.size = 50;
      this.page = 0;
      this.build();
      this.refresh();
    }

    build() {
      const plain = this.place.querySelector(".plain-items");
      this.search = make("input", {
        type: "search", placeholder: "Search items", "aria-label": "Search items",
        on: { input: () => { this.asked = this.search.value.trim().toLowerCase(); this.refresh(); } },
      });
      this.choices = make("div", { class: "choice", role: "group", "aria-label": "Status" });
      const counts = new Map();
      for (const row of this.rows) counts.set(row[STATE], (counts.get(row[STATE]) || 0) + 1);
      this.choose("", `All ${count(this.rows.length)}`);
      for (const state of STATES) {
        if (counts.has(state)) this.choose(state, `${WORDS[state] || state} ${count(counts.get(state))}`);
      }
      this.head = make("tr");
      COLUMNS.forEach(([name, title, , number], n) => this.head.append(
        make("th", { scope: "col", class: `c-${name}${number ? " number" : ""}` },
          make("button", { type: "button", on: { click: () => this.order(n) } }, title))));
      this.body = make("tbody");
      this.told = make("span", { "aria-live": "polite" });
      this.back = make("button", { type: "button", on: { click: () => this.turn(-1) } }, "← Previous");
      this.next = make("button", { type: "button", on: { click: () => this.turn(1) } }, "Next →");
      plain.replaceWith(
        make("div", { class: "bar" }, this.search, this.choices),
        make("table", { class: "grid" }, make("thead", {}, this.head), this.body),
        this.pager = make("div", { class: "pager" }, this.back, this.next, this.told));
    }

    choose(state, title) {
      this.choices.append(make("button", {
        type: "button", "data-state": state, "aria-pressed": String(state === this.state),
        on: { click: () => { this.state = state; this.refresh(); } },
      }, title));
    }

    order(column) {
      const by = COLUMNS[column][2];
      this.sort = { by, down: this.sort.by === by ? !this.sort.down : COLUMNS[column][3] && by !== 0 };
      this.refresh();
    }

    refresh() {
      this.page = 0;
      for (const button of this.choices.children) {
        button.setAttribute("aria-pressed", String(button.dataset.state === this.state));
      }
      COLUMNS.forEach(([, , by], n) => {
        const cell = this.head.children[n];
        if (by !== this.sort.by) cell.removeAttribute("aria-sort");
        else cell.setAttribute("aria-sort", this.sort.down ? "descending" : "ascending");
      });
      if (this.asked && !this.words) {
        this.words = new Map(this.rows.map((row) => [row, `${row[KEY]} ${row[PREVIEW]}`.toLowerCase()]));
      }
      this.found = this.rows.filter((row) =>
        (!this.state || row[STATE] === this.state) && (!this.asked || this.words.get(row).includes(this.asked)));
      const { by, down } = this.sort, sign = down ? -1 : 1;
      const compare = new Intl.Collator("en", { numeric: true }).compare;
      this.found.sort((a, b) => {
        const [one, other] = [a[by], b[by]];
        // What is unknown stands last, whichever way it goes.
        if (one === null || other === null) return (one === null) - (other === null);
        return sign * (typeof one === "number" ? one - other : compare(one, other));
      });
      this.show();
    }

    turn(pages) {
      this.page += pages;
      this.show();
      this.place.querySelector(".grid").scrollIntoView({ block: "start" });
    }

    show() {
      const first = this.page * this.size, last = Math.min(first + this.size, this.found.length);
      this.body.replaceChildren(...this.found.slice(first, last).map((row) => this.row(row)));
      this.told.textContent = this.found.length
        ? `${count(first + 1)}–${count(last)} of ${count(this.found.length)}` : "No item is like that";
      this.back.disabled = this.page === 0;
      this.next.disabled = last === this.found.length;
      this.back.hidden = this.next.hidden = this.found.length <= this.size;
    }

    row(row) {
      const button = make("button", { type: "button", "aria-expanded": "false" }, row[KEY]);
      const line = make("tr", { class: "row" },
        make("td", { class: "c-number number" }, count(row[0])),
        make("td", { class: "c-key key", title: row[KEY] }, button),
        make("td", { class: "c-state" }, make("span", { class: `chip ${row[STATE]}` }, WORDS[row[STATE]] || row[STATE])),
        make("td", { class: "c-preview preview", title: row[PREVIEW] }, row[PREVIEW]),
        make("td", { class: "c-tokens number" }, count(row[TOKENS])),
        make("td", { class: "c-cost number" }, dollars(row[COST])),
        make("td", { class: "c-seconds number" }, took(row[SECONDS])));
      line.addEventListener("click", () => {
        if (!String(window.getSelection())) this.toggle(line, row, button);
      });
      return line;
    }

    toggle(line, row, button) {
      const open = line.classList.toggle("open");
      button.setAttribute("aria-expanded", String(open));
      if (!open) { line.nextElementSibling.remove(); return; }
      const cell = make("td", { colspan: COLUMNS.length });
      const body = this.bodies(row[BLOCK])[row[PLACE]];
      cell.append(...(body && body.childNodes.length
        ? [...document.importNode(body, true).childNodes]
        : [make("p", { class: "quiet" }, "Nothing more is kept of this item here.")]));
      line.after(make("tr", { class: "detail" }, cell));
    }

    // A block of bodies is read when the first of its rows is opened.
    bodies(block) {
      if (!this.blocks.has(block)) {
        const data = document.getElementById(`${this.anchor}-${block}`).textContent;
        this.blocks.set(block, new DOMParser().parseFromString(data, "text/html").body.children);
      }
      return this.blocks.get(block);
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
  const button = make("button", { type: "button", class: "theme" });
  const dress = (theme) => {
    if (theme === "auto") delete root.dataset.theme;
    else root.dataset.theme = theme;
    button.textContent = { auto: "Theme: auto", light: "Theme: light", dark: "Theme: dark" }[theme];
    button.dataset.now = theme;
  };
  dress(THEMES.includes(kept.get()) ? kept.get() : "auto");
  button.addEventListener("click", () => {
    const theme = THEMES[(THEMES.indexOf(button.dataset.now) + 1) % THEMES.length];
    dress(theme);
    kept.set(theme);
  });
  document.querySelector(".top").append(button);

  const tables = [...document.querySelectorAll("[data-items]")].map((place) => new Items(place));
  document.addEventListener("keydown", (event) => {
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && tables.length) {
      event.preventDefault();
      tables[0].search.focus();
    }
  });
  const reveal = () => {
    const target = document.getElementById(location.hash.slice(1));
    if (target instanceof HTMLDetailsElement) target.open = true;
  };
  window.addEventListener("hashchange", reveal);
  reveal();
  let closed = [];
  window.addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details:not([open])")];
    for (const one of closed) one.open = true;
  });
  window.addEventListener("afterprint", () => { for (const one of closed) one.open = false; });
})();
