"use strict";
// Draws the timelines that the page carries, and connects them with the table. Texts are only ever set as text.
(async () => {
  const byId = (id) => document.getElementById(id);
  const unpack = async (id) => {
    const bytes = Uint8Array.from(atob(byId(id).textContent), (char) => char.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  };
  const loading = byId("loading");
  loading.textContent = "The timeline is being drawn.";
  const LETTERS = "abcdefghijklmnopqrstuvwxyz";

  // The table: search, filter, keys

 const rows = [...document.querySelectorAll(".calls tbody tr")];
  const search = byId("search"), filter = byId("filter"), found = byId("found");
  const texts = new Map();
  const textOf = (row) => {
    if (!texts.has(row)) texts.set(row, row.textContent.toLowerCase());
    return texts.get(row);
  };
  const choose = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean), kind = filter.value;
    let count = 0;
    for (const row of rows) {
      const shown = words.every((word) => textOf(row).includes(word)) &&
        (!kind || (kind === "!" ? row.classList.contains("alone") || row.querySelector(".badge") : row.querySelector(`td.${kind}`)));
      row.hidden = !shown;
      if (shown) count += 1;
    }
    for (const group of document.querySelectorAll(".group")) group.hidden = !group.querySelector("tbody tr:not([hidden])");
    found.textContent = words.length || kind ? `${count} of ${rows.length} ${rows.length === 1 ? "row" : "rows"}` : "";
  };
  search.addEventListener("input", choose);
  filter.addEventListener("change", choose);
  byId("search").form.addEventListener("submit", (event) => event.preventDefault());
  if (rows.length) rows[0].tabIndex = 0;
  const focusRow = (row) => {
    for (const other of rows) if (other.tabIndex === 0) other.tabIndex = -1;
    row.tabIndex = 0;
    row.focus();
  };
  const placeOf = (element) => {  // run and position of a row, or of the half of a row that was clicked
    const match = /^([a-z])(\d+)$/.exec(element.id);
    return match && [LETTERS.indexOf(match[1]), Number(match[2])];
  };
  const placesOf = (row) => [row, ...row.querySelectorAll("[id]")].map(placeOf).filter(Boolean);
  const neighbour = (row, step) => {
    let at = rows.indexOf(row) + step;
    while (rows[at] && rows[at].hidden) at += step;
    return rows[at];
  };
  document.addEventListener("keydown", (event) => {
    const row = event.target.closest && event.target.closest(".calls tbody tr");
    if (!row || event.target !== row) return;
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      event.preventDefault();
      const next = neighbour(row, step);
      if (next) focusRow(next);
    } else if (event.key === "Enter") {
      event.preventDefault();
      select(placesOf(row), true);
    }
  });
  document.addEventListener("click", (event) => {
    const row = event.target.closest && event.target.closest(".calls tbody tr");
    if (row && !String(window.getSelection())) select(placesOf(row), true);
  });
  const rowOf = (run, position) => {
    const element = byId(LETTERS[run] + position);
    return element && element.closest("tr");
  };

  // The timelines

  let select = () => {};
  let data;
  try {
    const [program, json] = await Promise.all([unpack("bokeh"), unpack("data")]);
    data = JSON.parse(json);
    const script = document.createElement("script");
    script.textContent = program;
    document.head.append(script);
  } catch (error) {
    loading.textContent = "This browser cannot draw the timeline. The table below has all calls.";
    document.documentElement.dataset.ready = "no";
    return;
  }
 const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const views = [];
  for (const [number, item] of data.items.entries()) {
    const view = await Bokeh.embed.embed_item(item, item.target_id);
    const plot = view.roots ? view.roots[0].model : [...view][0].model;
    views.push({ plot, run: data.runs[number], box: byId(item.target_id) });
  }
  const layer = (plot, name) => plot.renderers.find((one) => one.name === name);
  const paint = () => {
    const ink = dark.matches ? "#c3ccd8" : "#4a5563", line = dark.matches ? "#3a4655" : "#dde3ea";
    for (const { plot } of views) {
      for (const axis of [...plot.below, ...plot.left]) {
        axis.major_label_text_color = axis.axis_label_text_color = ink;
        axis.major_tick_line_color = axis.type === "LinearAxis" && plot.below.includes(axis) ? line : null;
      }
      for (const grid of plot.center) if (grid.grid_line_color) grid.grid_line_color = line;
      const outlined = layer(plot, "selected");
      outlined.glyph.line_color = dark.matches ? "#ffffff" : "#111827";
      const sum = layer(plot, "sum");
      if (sum) sum.glyph.text_color = dark.matches ? "#b795ff" : "#5f35ab";
    }
  };
  dark.addEventListener("change", paint);

  // All bars of a run by their position, from the columns that Bokeh draws
  const LIGHT = new Set(["function"]);
  for (const view of views) {
    view.bars = [];
    view.glyphs = [];
    for (const renderer of view.plot.renderers) {
      const source = renderer.data_source.data;
      const n = source.n || (source.get && source.get("n"));
      if (!n) continue;
      view.glyphs.push([renderer.glyph, renderer.name]);
      const column = (name) => source[name] || source.get(name);
      const [left, right, y] = ["left", "right", "y"].map(column);
      for (let i = 0; i < n.length; i += 1) view.bars[n[i]] = { left: left[i], right: right[i], y: y[i], kind: renderer.name };
    }
    view.isCrowded = view.bars.length > data.crowded;
    view.whole = [view.plot.x_range.start, view.plot.x_range.end];
  }

 const measure = document.createElement("canvas").getContext("2d");
  const widths = new Map();
  const widthOf = (text, font) => {
    const key = font + text;
    if (!widths.has(key)) {
      measure.font = font;
      widths.set(key, measure.measureText(text).width);
    }
    return widths.get(key);
  };
  const label = (view) => {
    const { plot, run } = view, { start, end } = plot.x_range;
    const size = Math.max(8, Math.min(11, Math.floor(run.height / 2))), font = `${size}px system-ui, sans-serif`;
    const scale = (plot.inner_width || view.box.clientWidth - 80) / (end - start);
    const x = [], y = [], text = [], colour = [], behind = [];
    let seen = 0;
    for (const [position, bar] of view.bars.entries()) {
      if (bar.right < start || bar.left > end) continue;
      seen += 1;
      const from = Math.max(bar.left, start), room = (Math.min(bar.right, end) - from) * scale - 14;
      if (room < 12 || run.height < 12 || x.length > 2000) continue;
      let name = data.names[run.names[position]];
      if (widthOf(name, font) > room) {
        const most = Math.floor(name.length * room / widthOf(name, font)) - 1;
        if (most < 3) continue;
        name = `${name.slice(0, most)}…`;
      }
      x.push(from); y.push(bar.y); text.push(name);
      behind.push(data.styles[bar.kind][0]);
      colour.push(LIGHT.has(bar.kind) ? "#1b2430" : "#ffffff");
    }
    const isCrowded = seen > data.crowded;
    if (isCrowded !== view.isCrowded) {
      view.isCrowded = isCrowded;
      for (const [glyph, kind] of view.glyphs) {
        const [fill, edge, pattern] = data.styles[kind];
        glyph.setv({
          line_color: { value: isCrowded || kind === "hit" ? fill : edge },
          line_width: { value: kind === "hit" && !isCrowded ? 3 : 1 },
          hatch_pattern: { value: isCrowded ? "blank" : pattern },
        });
      }
    }
    if (x.length || view.isLabelled) layer(plot, "labels").data_source.data = { x, y, text, colour, behind };
    view.isLabelled = x.length > 0;
  };
  const later = (() => {
    let asked = false;
    return () => {
      if (asked) return;
      asked = true;
      requestAnimationFrame(() => { asked = false; views.forEach(label); });
    };
  })();

  // One range for all
  let moving = false;
  const setRange = (start, end) => {
    const [least, most] = views[0].whole, width = Math.min(end - start, most - least);
    start = Math.max(least, Math.min(start, most - width));
    moving = true;
    for (const { plot } of views) plot.x_range.setv({ start, end: start + width });
    moving = false;
    later();
  };
  for (const { plot } of views) {
    const follow = () => { if (!moving) setRange(plot.x_range.start, plot.x_range.end); };
    plot.x_range.properties.start.change.connect(follow);
    plot.x_range.properties.end.change.connect(follow);
    plot.properties.inner_width.change.connect(later);
  }
  const zoom = (factor) => {
    const { start, end } = views[0].plot.x_range, middle = (start + end) / 2, half = (end - start) / 2 * factor;
    if (half * 2 >= (views[0].whole[1] - views[0].whole[0]) / 1e6) setRange(middle - half, middle + half);
  };
  const move = (part) => {
    const { start, end } = views[0].plot.x_range, step = (end - start) * part;
    setRange(start + step, end + step);
  };
  const actions = {
    "zoom-in": () => zoom(0.5), "zoom-out": () => zoom(2), "earlier": () => move(-0.3), "later": () => move(0.3),
    "whole": () => setRange(...views[0].whole),
  };
  for (const [id, action] of Object.entries(actions)) byId(id).addEventListener("click", action);
  const KEYS = { "+": "zoom-in", "=": "zoom-in", "-": "zoom-out", "0": "whole", ArrowLeft: "earlier", ArrowRight: "later" };
  for (const { box } of views) {
    box.addEventListener("keydown", (event) => {
      const action = KEYS[event.key];
      if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      actions[action]();
    });
  }

  // A call that is chosen, in the table and in the timelines
  select = (places, isFromTable) => {
    for (const row of document.querySelectorAll(".calls tr[aria-current]")) row.removeAttribute("aria-current");
    for (const [number, view] of views.entries()) {
      const chosen = places.filter(([run]) => run === number).map(([, position]) => view.bars[position]).filter(Boolean);
      const pick = (name) => chosen.map((bar) => bar[name]);
      layer(view.plot, "selected").data_source.data = { left: pick("left"), right: pick("right"), y: pick("y") };
    }
    const [run, position] = places[0];
    const row = rowOf(run, position), bar = views[run].bars[position];
    if (row) row.setAttribute("aria-current", "true");
    if (isFromTable) {
      const { start, end } = views[run].plot.x_range, width = end - start;
      if (bar.right < start || bar.left > end) setRange((bar.left + bar.right - width) / 2, (bar.left + bar.right + width) / 2);
      const { box, run: { height } } = views[run];
      box.scrollTop = Math.max(0, bar.y * height - box.clientHeight / 2);
    } else if (row) {
      row.closest(".group").hidden = row.hidden = false;
      row.scrollIntoView({ block: "center" });
      focusRow(row);
    }
  };

  // What is under the pointer
  const tip = byId("tip");
  const barAt = (view, x, y, slack) => {
    let best = -1, least = Infinity;
    for (const [position, bar] of view.bars.entries()) {
      if (Math.abs(bar.y - y) > 0.5) continue;
      const distance = x < bar.left ? bar.left - x : x > bar.right ? x - bar.right : 0;
      if (distance > slack) continue;
      const rank = distance + (bar.right - bar.left) * 1e-6;
      if (rank < least) { least = rank; best = position; }
    }
    return best;
  };
  const line = (tag, text) => {
    const element = document.createElement(tag);
    element.textContent = text;
    return element;
  };
  for (const [number, view] of views.entries()) {
    const slackOf = () => 4 * (view.plot.x_range.end - view.plot.x_range.start) / (view.plot.inner_width || 600);
    let seen = -1, pointer = [0, 0];
    view.box.addEventListener("pointermove", (event) => {
      pointer = [event.clientX, event.clientY];
    }, { capture: true });
    view.plot.on_event("mousemove", (event) => {
      const position = barAt(view, event.x, event.y, slackOf());
      view.box.style.cursor = position < 0 ? "default" : "pointer";
      if (position < 0) { tip.hidden = true; seen = -1; return; }
      if (position !== seen) {
        seen = position;
        const element = byId(LETTERS[number] + position);
        const cells = element ? [...(element.tagName === "TR" ? element.children : [element, element.nextElementSibling, element.nextElementSibling.nextElementSibling])] : [];
        const parts = cells.map((cell) => cell.textContent.trim());
        const name = data.names[view.run.names[position]];
        const lines = element && element.tagName === "TR" ? [`${parts[1]}, from ${parts[4]}, took ${parts[5]}`, parts[2].slice(name.length).trim(), parts[3]] : [parts[0], (parts[1] || "").slice(name.length).trim(), parts[2]];
        tip.replaceChildren(line("b", name), ...lines.filter(Boolean).map((text) => line("span", text.length > 300 ? `${text.slice(0, 300)}…` : text)));
      }
      tip.hidden = false;
      const { width, height } = tip.getBoundingClientRect();
      tip.style.left = `${Math.max(8, Math.min(pointer[0] + 14, innerWidth - width - 8))}px`;
      tip.style.top = `${pointer[1] + 18 + height > innerHeight ? pointer[1] - height - 14 : pointer[1] + 18}px`;
    });
    view.plot.on_event("mouseleave", () => { tip.hidden = true; seen = -1; });
    view.plot.on_event("tap", (event) => {
      const position = barAt(view, event.x, event.y, slackOf());
      if (position >= 0) { tip.hidden = true; select([[number, position]], false); }
    });
  }
  for (const link of document.querySelectorAll(".drifts a")) {
    link.addEventListener("click", (event) => {
      event.preventDefault();
      const element = byId(link.hash.slice(1)), row = element.closest("tr");
      select([placeOf(element), ...placesOf(row)], true);
      select([placeOf(element), ...placesOf(row)], false);
    });
  }
  if (dark.matches) paint();
  views.forEach(label);
 loading.hidden = true;
  window.addEventListener("beforeprint", () => { tip.hidden = true; });
  requestAnimationFrame(() => requestAnimationFrame(() => { document.documentElement.dataset.ready = "yes"; }));
})();
