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

// times in the viewer's zone
const localise = () => {
  for (const time of $$("time[datetime]")) {
    const at = new Date(time.dateTime);
    if (Number.isNaN(at.getTime())) continue;
    if ("clock" in time.dataset) {
      time.textContent = at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hour12: false });
    }
    if ("full" in time.dataset) {
      time.textContent = at.toLocaleString([], { weekday: "short", year: "numeric", month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" });
    }
    time.title = `${at.toLocaleString()} here, ${time.dateTime.slice(0, 19).replace("T", " ")} UTC`;
  }
};

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
      await copy(place.textContent);
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
  const tell = () => {
    const count = boxes.filter((box) => box.checked).length;
    $("#selected").textContent = count ? `${count} selected` : "Select this page, or";
    all.checked = count === boxes.length;
  };
  all.addEventListener("change", () => { boxes.forEach((box) => { box.checked = all.checked; }); tell(); });
  boxes.forEach((box) => box.addEventListener("change", tell));
  tell();
};

const dress = () => { localise(); copyable(); selection(); };
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

// keys
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") {
    const open = $$("details.act[open]").at(-1);
    if (open) { open.open = false; $("summary", open).focus(); }
    return;
  }
  if (event.target.closest("input, textarea, select") || event.ctrlKey || event.metaKey || event.altKey) return;
  const rows = $$("tbody tr a:first-of-type");
  const here = rows.indexOf(document.activeElement);
  if (event.key === "/" && $("#q")) { event.preventDefault(); $("#q").focus(); $("#q").select(); }
  if (event.key === "j" && rows.length) rows[Math.min(here + 1, rows.length - 1)].focus();
  if (event.key === "k" && rows.length) rows[Math.max(here - 1, 0)].focus();
  if (event.key === "x" && here >= 0) $('input[name="id"]', document.activeElement.closest("tr"))?.click();
  if (event.key === "n") $('a[rel="next"]')?.click();
  if (event.key === "g") location.assign(`${document.body.dataset.base}/`);
});

// JSON in the enqueue form
const area = $("[data-json]");
if (area) {
  const said = $("#json-problem");
  area.addEventListener("input", () => {
    try { JSON.parse(area.value || "{}"); said.textContent = "JSON. Numbers keep all their digits."; said.className = ""; } catch (error) { said.textContent = error.message; said.className = "warn"; }
  });
}

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
      option.value = head + (text.includes(" ") ? `"${text}"` : text);
      return option;
    }));
  });
}

// an operation in steps goes on by itself, until it is stopped
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
  document.activeElement?.closest("[data-live] form, form[data-live], [data-live] table");
let loading = false;
const refresh = async () => {
  if (loading || isBusy() || !$("[data-live]")) return;
  loading = true;
  try {
    const answer = await fetch(location.href, { headers: { accept: "text/html", "bugle-refresh": "1" } });
    if (answer.redirected || answer.status === 401) { location.reload(); return; }
    // 204: not now, others are being answered
    if (answer.status !== 200) return;
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
  } catch { /* the server is away, or this page is being left: the next tick tries again */
  } finally { loading = false; }
};
if ($("[data-live]")) {
  let source = null;
  let last = Date.now();
  const listen = () => {
    source = new EventSource(`${document.body.dataset.base}/live`);
    source.addEventListener("tick", (event) => {
      const { age } = JSON.parse(event.data);
      last = Date.now();
      live.textContent = age > 5 ? `live, counted ${age} s ago` : "live";
      live.className = "live";
      refresh();
    });
    source.addEventListener("stale", () => { live.className = "live stale"; });
    source.addEventListener("error", () => { live.className = "live stale"; });
  };
  live.hidden = false;
  listen();
  setInterval(() => {
    if (live.classList.contains("stale")) live.textContent = `stale since ${new Date(last).toLocaleTimeString()}`;
  }, 1000);
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) { source.close(); source = null; } else if (!source) listen();
  });
}
