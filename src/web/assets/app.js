// Live updates, shortcuts, copying, the theme. Everything works without it, except that.
const $ = (query, root = document) => root.querySelector(query);
const $$ = (query, root = document) => [...root.querySelectorAll(query)];

// theme: system, light, dark
const theme = $("#theme");
const root = document.documentElement;
const apply = (name) => {
  if (name === "light" || name === "dark") root.dataset.theme = name;
  else delete root.dataset.theme;
};
let chosen = null;
try { chosen = localStorage.getItem("bugle-theme"); } catch { /* storage may be off */ }
apply(chosen);
theme.hidden = false;
theme.addEventListener("click", () => {
  const order = ["system", "light", "dark"];
  const next = order[(order.indexOf(root.dataset.theme ?? "system") + 1) % 3];
  apply(next);
  theme.title = `Theme: ${next}`;
  try { localStorage.setItem("bugle-theme", next); } catch { /* only for this page then */ }
});

// times: one switch for all of them, in the viewer's zone or in UTC
const zone = $("#zone");
let isUtc = false;
try { isUtc = localStorage.getItem("bugle-zone") === "utc"; } catch { /* the viewer's then */ }
const parts = (at, options) => Object.fromEntries(new Intl.DateTimeFormat("en-US", {
  hourCycle: "h23", timeZone: isUtc ? "UTC" : undefined, ...options,
}).formatToParts(at).map(({ type, value }) => [type, value]));
const offset = (at) => {
  const name = parts(at, { timeZoneName: "shortOffset" }).timeZoneName;
  return name.replace("GMT", "UTC").replace(/[+-]0$/, "");
};
const form = (at, name) => {
  const part = parts(at, { weekday: "short", year: "numeric", month: "short", day: "numeric", hour: "2-digit",
    minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3 });
  const minute = `${part.hour}:${part.minute}`;
  const day = `${part.month} ${part.day}`;
  switch (name) {
    case "minute": return minute;
    case "weekday": return `${part.weekday} ${minute}`;
    case "day": return day;
    case "clock": return `${minute}:${part.second}.${part.fractionalSecond}`;
    case "moment": return `${day}, ${minute}:${part.second}`;
    default: return `${part.weekday}, ${day}, ${part.year}, ${minute}${part.second === "00" ? "" : `:${part.second}`} ${offset(at)}`;
  }
};
const localize = () => {
  const now = new Date();
  const here = isUtc ? "UTC" : offset(now);
  for (const place of $$("[data-zone]")) place.textContent = here;
  zone.textContent = here;
  for (const time of $$("time[datetime]")) {
    const at = new Date(time.dateTime);
    if (Number.isNaN(at.getTime())) continue;
    if (time.dataset.form) time.textContent = form(at, time.dataset.form);
    if ("full" in time.dataset) time.textContent = form(at, "full");
    time.title = `${form(at, "full")} (${time.dateTime.slice(0, 19).replace("T", " ")} UTC)`;
  }
};
zone.hidden = false;
zone.addEventListener("click", () => {
  isUtc = !isUtc;
  try { localStorage.setItem("bugle-zone", isUtc ? "utc" : "local"); } catch { /* only for this page then */ }
  localize();
});

// charts: what the bucket below the pointer says
document.addEventListener("pointermove", (event) => {
  const chart = event.target.closest?.(".chart");
  for (const tip of $$(".tip")) if (tip.parentElement !== chart) { tip.parentElement.classList.remove("read"); tip.remove(); }
  if (!chart?.dataset.says) return;
  const svg = $("svg", chart);
  const box = svg.getBoundingClientRect();
  const lines = chart.dataset.says.split("|").map((line) => {
    const colon = line.indexOf(":");
    return [line.slice(0, colon), line.slice(colon + 1).split(";")];
  });
  const count = lines[0][1].length;
  const place = Math.floor((event.clientX - box.left) / box.width * count);
  if (place < 0 || place >= count) return;
  let tip = $(".tip", chart);
  if (!tip) { tip = document.createElement("div"); tip.className = "tip"; chart.append(tip); }
  const at = new Date((Number(chart.dataset.begin) + place * Number(chart.dataset.bucket)) * 1000);
  const values = lines.map(([name, all]) => `${name} ${all[place] || "–"}`);
  const so_far = place === count - 1 ? ", so far" : "";
  tip.replaceChildren(`${form(at, "weekday")} ${offset(at)}${so_far}`, document.createElement("br"), values.join(" · "));
  const x = (place + 0.5) / count;
  tip.style.left = `${(x * box.width - (x > 0.5 ? tip.offsetWidth + 8 : -8)).toFixed(0)}px`;
  $(".cursor", svg)?.setAttribute("d", `M${(x * 840).toFixed(1)} 0V160`);
  chart.classList.add("read");
});

// copying, also over plain HTTP, where there is no clipboard API
const copy = async (text) => {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = document.createElement("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
};
const copyable = () => {
  for (const place of $$("[data-copy]")) {
    if (place.nextElementSibling?.classList.contains("copy")) continue;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "copy";
    button.addEventListener("click", async () => {
      // what is shown may be cut: the whole is at the address then
      let text = place.textContent;
      if (place.dataset.copy) {
        const answer = await fetch(place.dataset.copy);
        if (!answer.ok) { button.textContent = "not copied"; return; }
        text = await answer.text();
      }
      await copy(text);
      button.textContent = "copied";
      setTimeout(() => { button.textContent = "copy"; }, 1500);
    });
    place.after(button);
  }
};

// selection
const selection = () => {
  const all = $("#select-all");
  const boxes = $$('input[name="id"][type="checkbox"]');
  if (!all || boxes.length === 0) return;
  all.hidden = false;
  const everything = $('input[name="all"][type="checkbox"]');
  const tell = () => {
    const count = boxes.filter((box) => box.checked).length;
    $("#selected").textContent = everything?.checked ? "Chosen:"
      : count ? `${count} selected, or` : everything ? "Select jobs, or" : "Select jobs to act on them";
    all.indeterminate = count > 0 && count < boxes.length;
    all.checked = count === boxes.length;
  };
  all.addEventListener("change", () => { boxes.forEach((box) => { box.checked = all.checked; }); tell(); });
  boxes.forEach((box) => box.addEventListener("change", tell));
  everything?.addEventListener("change", tell);
  tell();
};

// the current page, where the navigation is wider than the window
const current = $(".nav [aria-current]");
if (current) $(".nav").scrollLeft = current.offsetLeft - ($(".nav").clientWidth - current.offsetWidth) / 2;

const dress = () => { localize(); copyable(); selection(); };
dress();

// one popover at a time; Escape closes it
document.addEventListener("toggle", (event) => {
  if (!event.target.open || !event.target.matches("details.act")) return;
  for (const other of $$("details.act[open]")) {
    // neither what it is in, nor what it contains: the event of a menu may come after that of what was opened in it
    if (!other.contains(event.target) && !event.target.contains(other)) other.open = false;
  }
  // what one writes in, rather than an option before it
  const field = $("input:not([type=hidden], [type=checkbox]), textarea", event.target) ?? $("input:not([type=hidden])", event.target);
  if (!event.target.contains(document.activeElement?.closest("form"))) field?.focus();
}, true);

// keys; they can be turned off, for people whose keyboards or programs press letters by themselves
const KEYS = [
  ["/", "Search", () => { const box = $("#q"); box?.focus(); box?.select(); }],
  ["j", "Next row", () => step(1)],
  ["k", "Previous row", () => step(-1)],
  ["x", "Select the row", () => $('input[name="id"]', document.activeElement.closest("tr"))?.click()],
  ["n", "Older", () => $('a[rel="next"]')?.click()],
  ["p", "Newer", () => $('a[rel="prev"]')?.click()],
  ["g", "Overview", () => location.assign(`${document.body.dataset.base}/`)],
  ["?", "These keys", () => help()],
];
const step = (by) => {
  // one stop for each row: its first link
  const rows = $$("main tbody tr").map((row) => $("a", row)).filter(Boolean);
  const here = rows.indexOf(document.activeElement.closest("tr") && $("a", document.activeElement.closest("tr")));
  rows[Math.min(Math.max(here < 0 ? 0 : here + by, 0), rows.length - 1)]?.focus();
};
let areKeysOn = true;
try { areKeysOn = localStorage.getItem("bugle-keys") !== "off"; } catch { /* on then */ }
const help = () => {
  let dialog = $("#keys");
  if (!dialog) {
    dialog = document.createElement("dialog");
    dialog.id = "keys";
    dialog.setAttribute("aria-labelledby", "keys-title");
    const title = document.createElement("h2");
    title.id = "keys-title";
    title.textContent = "Keys";
    const list = document.createElement("dl");
    list.className = "facts";
    for (const [key, what] of [...KEYS, ["Esc", "Close what is open"]]) {
      const term = document.createElement("dt");
      const mark = document.createElement("kbd");
      mark.textContent = key;
      term.append(mark);
      const said = document.createElement("dd");
      said.textContent = what;
      list.append(term, said);
    }
    const label = document.createElement("label");
    label.className = "check";
    const box = document.createElement("input");
    box.type = "checkbox";
    box.checked = areKeysOn;
    box.addEventListener("change", () => {
      areKeysOn = box.checked;
      try { localStorage.setItem("bugle-keys", areKeysOn ? "on" : "off"); } catch { /* only for this page then */ }
    });
    label.append(box, " Letters are keys");
    const close = document.createElement("button");
    close.className = "btn";
    close.textContent = "Close";
    const row = document.createElement("form");
    row.method = "dialog";
    row.className = "row";
    row.append(close);
    dialog.append(title, list, label, row);
    document.body.append(dialog);
  }
  dialog.showModal();
};
const helper = $("#help");
helper.hidden = false;
helper.addEventListener("click", help);
document.addEventListener("keydown", (event) => {
  if ($("dialog[open]")) return;
  if (event.key === "Escape") {
    const open = $$("details.act[open]").at(-1);
    if (open) { open.open = false; $("summary", open).focus(); }
    return;
  }
  if (!areKeysOn || event.ctrlKey || event.metaKey || event.altKey) return;
  // in a box to tick, letters are still keys
  if (event.target.closest("input:not([type=checkbox]), textarea, select")) return;
  const known = KEYS.find(([key]) => key === event.key);
  if (known) { event.preventDefault(); known[2](); }
});

// JSON and cron expressions in forms: what they say, while they are typed
let said = 0;
document.addEventListener("input", (event) => {
  const field = event.target;
  if (!field.matches("[data-json], input[name=cron]")) return;
  const about = $("small:last-child", field.closest("label"));
  about.dataset.was ??= about.textContent;
  about.className = "";
  if (field.matches("[data-json]")) {
    try {
      JSON.parse(field.value || "{}");
      about.textContent = about.dataset.was;
    } catch (error) {
      about.textContent = `Not JSON: ${error.message}`;
      about.className = "warn";
    }
    return;
  }
  clearTimeout(said);
  said = setTimeout(async () => {
    const path = `${document.body.dataset.base}/cron-in-words?cron=${encodeURIComponent(field.value)}`;
    const answer = await fetch(path).catch(() => null);
    about.textContent = (answer?.ok && await answer.text()) || about.dataset.was;
  }, 150);
});

// time zones, as this browser knows them
if ($('input[list="zones"]') && Intl.supportedValuesOf) {
  const zones = document.createElement("datalist");
  zones.id = "zones";
  zones.append(...["UTC", ...Intl.supportedValuesOf("timeZone")].map((name) => new Option(name, name)));
  document.body.append(zones);
}

// the statement of a form, with what is typed
let asked = 0;
document.addEventListener("input", (event) => {
  const form = event.target.closest("form");
  const shown = form && $("pre[data-sql]", form);
  if (!shown || !/\/act\/|\/template$/.test(form.action)) return;
  clearTimeout(asked);
  asked = setTimeout(async () => {
    const answer = await fetch(`${form.action}/sql`, { method: "POST", body: new URLSearchParams(new FormData(form)) }).catch(() => null);
    if (answer?.ok) shown.textContent = await answer.text();
  }, 150);
});

// completion: names of terms, then their values
const query = $("#q");
const terms = $("#terms");
if (query && terms) {
  const keys = $$("option", terms).map((option) => option.value);
  query.addEventListener("input", () => {
    const at = Math.max(query.value.lastIndexOf(" "), query.value.lastIndexOf(",")) + 1;
    const word = query.value.slice(query.value.lastIndexOf(" ") + 1).replace(/^-/, "");
    const [key, value] = word.split(":");
    const values = value === undefined ? null : $$(`#of-${CSS.escape(key)} option`).map((option) => option.value);
    const head = values === null ? query.value.slice(0, query.value.length - word.length)
      : query.value.slice(0, Math.max(at, query.value.lastIndexOf(":") + 1));
    terms.replaceChildren(...(values ?? keys).map((text) => {
      const option = document.createElement("option");
      option.value = head + (/[\s,"\\]/.test(text) ? `"${text.replace(/["\\]/g, "\\$&")}"` : text);
      return option;
    }));
  });
}

// an operation in steps continues by itself, until it is stopped
const onward = $("[data-continue]");
if (onward) {
  const next = setTimeout(() => onward.requestSubmit(), 400);
  $("#stop").addEventListener("click", () => clearTimeout(next));
}

// a file instead of pasting
const upload = $("#upload");
if (upload) {
  upload.hidden = false;
  $("input", upload).addEventListener("change", async (event) => {
    const [file] = event.target.files;
    if (file) $("#lines").value = await file.text();
  });
}

// live: the server says when to look; nothing moves while something is selected, open, focused, pressed or hidden
const live = $("#live");
let pressed = false;
addEventListener("pointerdown", () => { pressed = true; });
for (const name of ["pointerup", "pointercancel"]) addEventListener(name, () => { pressed = false; });
const isBusy = () => document.hidden || pressed || $("details.act[open]") || $("[data-live] input:checked") ||
  $("dialog[open]") || getSelection()?.type === "Range" ||
  document.activeElement?.closest("nav[data-live], [data-live] form, form[data-live], [data-live] table");
let loading = false;
// what the page shows was so at this time
let asOf = Date.now();
const refresh = async () => {
  if (loading || isBusy()) return;
  loading = true;
  try {
    const answer = await fetch(location.href, { headers: { accept: "text/html", "bugle-refresh": "1" } });
    if (answer.redirected || answer.status === 401) { location.reload(); return; }
    // 204: not now, others are being answered
    if (answer.status !== 200) return;
    const age = Number(answer.headers.get("bugle-age")) || 0;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (isBusy()) return;
    for (const old of $$("[data-live]")) {
      // not old.id: a form with a field of that name has the field there
      const fresh = page.getElementById(old.getAttribute("id"));
      if (fresh && fresh.innerHTML !== old.dataset.was) {
        old.dataset.was = fresh.innerHTML;
        const open = $$("details", old).map((details) => details.open);
        old.replaceChildren(...fresh.childNodes);
        $$("details", old).forEach((details, place) => { details.open = open[place] ?? details.open; });
      }
    }
    dress();
    asOf = Date.now() - age * 1000;
  } catch { /* the server is away, or this page is being left: the next tick tries again */
  } finally { loading = false; }
};
// what answers a form has nothing live in it: it cannot be fetched again
if ($("main [data-live]")) {
  let source = null;
  let last = Date.now();
  // the age of what is shown, also while it stands still
  const tell = () => {
    const age = Math.round((Date.now() - asOf) / 1000);
    live.textContent = live.classList.contains("stale") ? `stale since ${new Date(last).toLocaleTimeString()}`
      : age > 5 ? `live, shown as of ${age} s ago` : "live";
  };
  const listen = () => {
    source = new EventSource(`${document.body.dataset.base}/live`);
    source.addEventListener("tick", () => {
      last = Date.now();
      live.className = "live";
      tell();
      refresh();
    });
    source.addEventListener("stale", () => { live.className = "live stale"; });
    source.addEventListener("error", () => { live.className = "live stale"; });
  };
  live.hidden = false;
  listen();
  setInterval(tell, 1000);
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) { source.close(); source = null; } else if (!source) listen();
  });
}
