// Numbers, sizes and times as people read them.

const NUMBER = new Intl.NumberFormat("en");
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export const NONE = "–";

export function count(value) {
  return value === null || value === undefined || Number.isNaN(value) ? NONE : NUMBER.format(Math.round(value));
}

export function brief(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return NONE;
  if (Math.abs(value) >= 10000) return SHORT.format(value);
  return NUMBER.format(Math.abs(value) < 100 ? Math.round(value * 10) / 10 : Math.round(value));
}

export function bytes(value) {
  if (value === null || value === undefined || Number.isNaN(value) || value < 0) return NONE;
  let unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit && value < 100 ? value.toFixed(1) : Math.round(value)} ${UNITS[unit]}`;
}

export function duration(ms) {
  if (ms === null || ms === undefined || Number.isNaN(ms) || ms < 0) return NONE;
  if (ms < 10) return `${Math.round(ms * 10) / 10} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60000) return `${(ms / 1000).toFixed(ms < 10000 ? 1 : 0)} s`;
  const minutes = Math.floor(ms / 60000);
  if (minutes < 60) return `${minutes} min ${Math.floor((ms % 60000) / 1000)} s`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h ${minutes % 60} min`;
  const days = Math.floor(hours / 24);
  return days < 100 ? `${days} d ${hours % 24} h` : `${count(days)} d`;
}

// A number with its noun: 1 row, 2 rows.
export function many(value, noun, form = count) {
  return `${form(value)} ${value === 1 ? noun : `${noun}s`}`;
}

const two = (number) => String(number).padStart(2, "0");

// The time of day, where the date and the zone are beside it.
export function clock(ms) {
  const at = new Date(ms);
  return `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

// Date, time and zone: the browser's zone, which may differ from that of the job.
export function moment(ms) {
  if (ms === null || ms === undefined || ms <= 0) return NONE;
  const at = new Date(ms);
  if (Number.isNaN(at.getTime())) return NONE;
  const east = -at.getTimezoneOffset();
  const [hours, minutes] = [Math.floor(Math.abs(east) / 60), Math.abs(east) % 60];
  const zone = east ? `UTC${east < 0 ? "−" : "+"}${hours}${minutes ? `:${two(minutes)}` : ""}` : "UTC";
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${clock(ms)} ${zone}`;
}

export function share(part, whole) {
  return whole ? `${Math.round((100 * part) / whole)}%` : NONE;
}

// Milliseconds a second as a share of the time.
export function ofTime(ms) {
  return share(ms, 1000);
}

export function signed(value, form) {
  return value === 0 ? "±0" : `${value > 0 ? "+" : "−"}${form(Math.abs(value))}`;
}
