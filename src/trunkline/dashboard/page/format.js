// Figures and times as people read them.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const date = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit" });

export const NONE = "–";

export const count = (value) => (value === null || value === undefined ? NONE : whole.format(value));

/** As short as an axis needs it: 950, 1.2k, 34k, 5.6M. */
export function brief(value) {
  for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (value >= size) return `${(value / size).toFixed(value < 10 * size ? 1 : 0).replace(/\.0$/, "")}${unit}`;
  }
  return value >= 10 || Number.isInteger(value) ? whole.format(value) : value.toFixed(1);
}

export function bytes(value) {
  if (value === null || value === undefined) return NONE;
  let amount = value;
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (amount < 1024) return unit === "B" ? `${amount} B` : `${amount.toFixed(amount < 10 ? 1 : 0)} ${unit}`;
    amount /= 1024;
  }
  return `${amount.toFixed(1)} TiB`;
}

export function duration(ms) {
  if (ms === null || ms === undefined) return NONE;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  for (const [unit, size] of [["d", 86400e3], ["h", 3600e3], ["min", 60e3]]) {
    if (ms >= 2 * size) return `${Math.floor(ms / size)} ${unit}`;
  }
  return `${(ms / 1000).toFixed(ms < 10e3 ? 1 : 0)} s`;
}

export const time = (ms) => clock.format(new Date(ms));
export const dateTime = (ms) => date.format(new Date(ms));

export function ago(ms) {
  if (ms === null || ms === undefined) return NONE;
  const since = Math.max(0, Date.now() - ms);
  if (since < 1500) return "now";
  return since < 10e3 ? `${Math.round(since / 1000)} s ago` : `${duration(since)} ago`;
}

export const plural = (n, thing) => `${count(n)} ${thing}${n === 1 ? "" : "s"}`;

/** Names with numbers in them in the order that people expect: n2 before n10. */
export const byName = new Intl.Collator("en", { numeric: true }).compare;
