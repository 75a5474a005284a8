"""JavaScript functions that inspect a page and prepare clicks and input.

They run in a world of their own: scripts of the page cannot replace the functions that they call.
Even there, names of elements can hide properties of documents and forms, so these are taken from
the prototypes. Results are cut before they are returned.
"""

_SHARED = r"""
  const own = (kind, name, one) => {
    const found = Object.getOwnPropertyDescriptor(kind.prototype, name);
    return found.get ? found.get.call(one) : found.value;
  };
  const matches = (selector) => Document.prototype.querySelectorAll.call(document, selector);
  const box = (one) => Element.prototype.getBoundingClientRect.call(one);
  const attribute = (one, name) => Element.prototype.getAttribute.call(one, name);
  const cut = (text, most) => String(text ?? "").slice(0, most);
  const visible = (one) => {
    const at = box(one);
    return at.width > 0 && at.height > 0
      && Element.prototype.checkVisibility.call(one, {visibilityProperty: true});
  };
  const named = (one) => {
    const id = attribute(one, "id"), classes = attribute(one, "class");
    const words = (classes ?? "").trim().split(/\s+/).filter(Boolean).slice(0, 3);
    const name = own(Element, "localName", one) + (id ? "#" + id : "");
    return cut([name, ...words].join("."), 100);
  };
  const text = (one) => cut(
    one instanceof HTMLElement
      ? own(HTMLElement, "innerText", one) : own(Node, "textContent", one), 1000000);
  const first = (selector) => {
    try {
      return {one: matches(selector)[0]};
    } catch (error) {
      return {answer: {state: "bad", what: cut(error.message, 300)}};
    }
  };
  const frame = () => new Promise((done) => {
    requestAnimationFrame(() => done());
    setTimeout(done, 200);
  });
  const page = () => ({
    url: cut(location.href, 8192),
    title: cut(own(Document, "title", document), 2000),
  });
"""

PAGE = f"function () {{ {_SHARED} return page(); }}"
"""The address and the title."""

QUERY = (
    f"function (selector, most) {{ {_SHARED}"
    r"""
  if (!selector) {
    const body = own(Document, "body", document) ?? own(Document, "documentElement", document);
    return {...page(), state: "ok", count: 0, elements: [], text: body ? text(body) : ""};
  }
  let found;
  try {
    found = matches(selector);
  } catch (error) {
    return {state: "bad", what: cut(error.message, 300)};
  }
  const row = (one) => {
    const at = box(one), attributes = {};
    for (const name of Element.prototype.getAttributeNames.call(one).slice(0, 30))
      attributes[cut(name, 100)] = cut(attribute(one, name), 10000);
    for (const kind of [HTMLInputElement, HTMLTextAreaElement, HTMLSelectElement])
      if (one instanceof kind && attribute(one, "type") !== "password")
        attributes.value = cut(own(kind, "value", one), 10000);
    return {
      tag: own(Element, "localName", one),
      attributes,
      text: cut(text(one), 20000),
      box: {x: at.x, y: at.y, width: at.width, height: at.height},
      visible: visible(one),
    };
  };
  const elements = Array.from({length: Math.min(found.length, most)}, (_, at) => row(found[at]));
  return {...page(), state: "ok", count: found.length, elements, text: ""};
}"""
)
"""The first `most` elements that match, or the visible text of the page."""

LOOK = (
    f"function (selector) {{ {_SHARED}"
    r"""
  let found;
  try {
    found = [...matches(selector)];
  } catch (error) {
    return {state: "bad", what: cut(error.message, 300)};
  }
  return {state: "ok", present: found.length > 0, visible: found.some(visible)};
}"""
)
"""Whether something matches, and whether it can be seen."""

CLICK = (
    f"async function (selector) {{ {_SHARED}"
    r"""
  const {one, answer} = first(selector);
  if (answer) return answer;
  if (!one) return {state: "missing"};
  if (!visible(one)) return {state: "hidden"};
  if (Element.prototype.matches.call(one, ":disabled")) return {state: "disabled"};
  const place = {block: "center", inline: "center", behavior: "instant"};
  Element.prototype.scrollIntoView.call(one, place);
  const before = box(one);
  await frame();
  await frame();
  const after = box(one);
  const still = ["x", "y", "width", "height"].every((key) => before[key] === after[key]);
  if (!still || !own(Node, "isConnected", one)) return {state: "moving"};
  const seen = [...Element.prototype.getClientRects.call(one)].map((at) => {
    const left = Math.max(at.left, 0), right = Math.min(at.right, innerWidth);
    const top = Math.max(at.top, 0), bottom = Math.min(at.bottom, innerHeight);
    const size = Math.max(right - left, 0) * Math.max(bottom - top, 0);
    return {size, x: (left + right) / 2, y: (top + bottom) / 2};
  }).sort((a, b) => b.size - a.size)[0];
  if (!seen || !seen.size) return {state: "outside"};
  let hit = Document.prototype.elementFromPoint.call(document, seen.x, seen.y);
  for (let root; hit && (root = own(Element, "shadowRoot", hit)); ) {
    const inner = root.elementFromPoint(seen.x, seen.y);
    if (!inner || inner === hit) break;
    hit = inner;
  }
  for (let above = hit; above; ) {
    if (above === one) return {state: "ok", x: seen.x, y: seen.y};
    if (above instanceof HTMLLabelElement && own(HTMLLabelElement, "control", above) === one)
      return {state: "ok", x: seen.x, y: seen.y};
    const parent = own(Node, "parentNode", above);
    above = parent instanceof ShadowRoot ? own(ShadowRoot, "host", parent) : parent;
  }
  return {state: "covered", what: hit ? named(hit) : ""};
}"""
)
"""Where to click: the first match, once it is visible and still; or why not."""

_EDITABLE = r"""
  const plain = ["text", "search", "url", "tel", "password"];
  const others = ["email", "number"];
  const kind = (one) => {
    if (one instanceof HTMLTextAreaElement) return "text";
    if (one instanceof HTMLInputElement) {
      const type = own(HTMLInputElement, "type", one);
      return plain.includes(type) ? "text" : others.includes(type) ? "other" : "";
    }
    return one instanceof HTMLElement && own(HTMLElement, "isContentEditable", one) ? "rich" : "";
  };
  const field = (one) =>
    one instanceof HTMLTextAreaElement ? HTMLTextAreaElement : HTMLInputElement;
"""

FOCUS = (
    f"function (selector, clear) {{ {_SHARED} {_EDITABLE}"
    r"""
  const {one, answer} = first(selector);
  if (answer) return answer;
  if (!one) return {state: "missing"};
  if (!visible(one)) return {state: "hidden"};
  if (Element.prototype.matches.call(one, ":disabled")) return {state: "disabled"};
  const is = kind(one);
  if (!is) return {state: "fixed", what: named(one)};
  if (is !== "rich" && own(field(one), "readOnly", one)) return {state: "fixed", what: named(one)};
  HTMLElement.prototype.focus.call(one);
  if (is === "rich") {
    const selection = getSelection();
    selection.selectAllChildren(one);
    if (!clear) selection.collapseToEnd();
  } else if (clear || is === "other") {
    field(one).prototype.select.call(one);
  } else {
    const end = own(field(one), "value", one).length;
    field(one).prototype.setSelectionRange.call(one, end, end);
  }
  return {state: "ok", end: is === "other" && !clear};
}"""
)
"""Focus the first match, with everything selected or the caret at its end; or why not.

`end` says that the caret has to be moved there by a key: such fields know no positions.
"""

VALUE = (
    f"function (selector) {{ {_SHARED} {_EDITABLE}"
    r"""
  const {one} = first(selector);
  if (!one) return {value: ""};
  const is = kind(one);
  return {value: is === "text" || is === "other" ? cut(own(field(one), "value", one), 10000)
    : cut(text(one), 10000)};
}"""
)
"""What a field has after typing."""

PLACE = (
    f"function (selector) {{ {_SHARED}"
    r"""
  const {one, answer} = first(selector);
  if (answer) return answer;
  if (!one) return {state: "missing"};
  if (!visible(one)) return {state: "hidden"};
  const place = {block: "center", inline: "center", behavior: "instant"};
  Element.prototype.scrollIntoView.call(one, place);
  const at = box(one);
  return {
    state: "ok", x: at.x + scrollX, y: at.y + scrollY, width: at.width, height: at.height,
  };
}"""
)
"""Where the first match is in its document."""

REPORTS = r"""(() => {
  const report = globalThis["%(binding)s"];
  delete globalThis["%(binding)s"];
  if (!report) return;
  const wrap = (holder, name, permission) => {
    const original = holder && holder[name];
    if (typeof original !== "function") return;
    const wrapped = {[name](...given) { report(permission); return original.apply(this, given); }};
    Object.defineProperty(holder, name, {value: wrapped[name], configurable: true, writable: true});
  };
  const of = (name) => globalThis[name] && globalThis[name].prototype;
  wrap(of("Geolocation"), "getCurrentPosition", "geolocation");
  wrap(of("Geolocation"), "watchPosition", "geolocation");
  wrap(globalThis.Notification, "requestPermission", "notifications");
  wrap(of("MediaDevices"), "getUserMedia", "camera or microphone");
  wrap(of("MediaDevices"), "getDisplayMedia", "screen capture");
  wrap(of("Clipboard"), "readText", "clipboard");
  wrap(of("Clipboard"), "read", "clipboard");
  wrap(of("Navigator"), "requestMIDIAccess", "MIDI devices");
  wrap(of("USB"), "requestDevice", "USB devices");
  wrap(of("Serial"), "requestPort", "serial ports");
  wrap(of("HID"), "requestDevice", "HID devices");
  wrap(of("Bluetooth"), "requestDevice", "Bluetooth devices");
})()"""
"""Reports that a page asks for a permission; that it is refused does not depend on this."""

PERMISSIONS = (
    *("geolocation", "notifications", "camera", "microphone", "clipboard-read", "midi"),
    *("local-network-access", "storage-access", "window-management", "local-fonts"),
    *("idle-detection", "persistent-storage", "screen-wake-lock", "display-capture"),
)
"""The names of permissions that are set to `denied` where the browser knows them."""
REPORTED = frozenset(
    {
        *("geolocation", "notifications", "camera or microphone", "screen capture", "clipboard"),
        *("MIDI devices", "USB devices", "serial ports", "HID devices", "Bluetooth devices"),
    }
)
"""All that `REPORTS` may report; a page that reports something else is not listened to."""
