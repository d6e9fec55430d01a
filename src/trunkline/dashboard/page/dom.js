// Making and updating elements. Data only ever becomes text or an attribute: nothing here parses markup.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

/** An element; `facts` are properties, or attributes where their name has a dash. Strings among children become text. */
export function element(tag, facts = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(facts)) {
    if (name.includes("-")) made.setAttribute(name, value);
    else made[name] = value;
  }
  made.append(...children);
  return made;
}

export function drawn(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** Set a text only if it changed, so that a selection stays. */
export function setText(where, text) {
  if (where.textContent !== text) where.textContent = text;
}

/** Make the children of `parent` follow `items`: elements are kept by key, so that focus and open details stay. */
export function keyed(parent, items, keyOf, make, update) {
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let at = parent.firstElementChild;
  for (const item of items) {
    const key = String(keyOf(item));
    let child = old.get(key);
    if (child === undefined) {
      child = make(item);
      child.dataset.key = key;
    }
    old.delete(key);
    if (child === at) at = at.nextElementSibling;
    else parent.insertBefore(child, at);
    update(child, item);
  }
  for (const child of old.values()) child.remove();
}

export function show(where, shown) {
  where.hidden = !shown;
}
