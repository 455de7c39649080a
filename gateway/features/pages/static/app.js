"use strict";
(() => {
  const one = (selector, root = document) => root.querySelector(selector);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  // ---- theme
  const themeButton = one("#theme");
  if (themeButton) {
    themeButton.hidden = false;
    themeButton.addEventListener("click", () => {
      const root = document.documentElement;
      const dark = root.dataset.theme
        ? root.dataset.theme === "dark"
        : matchMedia("(prefers-color-scheme: dark)").matches;
      root.dataset.theme = dark ? "light" : "dark";
      try { localStorage.setItem("theme", root.dataset.theme); } catch { /* for this page only */ }
    });
  }

  // ---- times: keeps "5 min ago" up to date
  const ago = (seconds) => {
    for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
      if (seconds >= size) return `${Math.round(seconds / size)} ${unit} ago`;
    }
    return seconds < 5 ? "now" : `${Math.round(seconds)} s ago`;
  };
  setInterval(() => {
    for (const time of all("time[datetime]")) {
      const text = ago((Date.now() - Date.parse(time.dateTime)) / 1000);
      if (time.textContent !== text) time.textContent = text;
    }
  }, 5000);

  // ---- forms
  for (const fold of all("details.fold")) {
    if (fold.dataset.active === "0" && matchMedia("(max-width: 760px)").matches) fold.open = false;
  }
  for (const form of all("form[data-auto]")) {
    form.addEventListener("change", () => form.requestSubmit());
    form.addEventListener("submit", () => {
      for (const field of form.elements) if (!field.value && field.name) field.disabled = true;
    });
  }
  // A page restored from the browser's cache still has its empty fields disabled.
  addEventListener("pageshow", () => {
    for (const field of all("form[data-auto] :disabled")) field.disabled = false;
  });
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-confirm]");
    if (button && !confirm(button.dataset.confirm)) event.preventDefault();
  });

  // ---- keys on lists; none while something is typed, with a modifier, or where they are off
  const keys = one("#keys");
  if (keys) {
    const on = one("#keys-on");
    try { on.checked = localStorage.getItem("keys") !== "off"; } catch { /* on */ }
    on.addEventListener("change", () => {
      try { localStorage.setItem("keys", on.checked ? "on" : "off"); } catch { /* for this page only */ }
    });
    const button = one("#keys-button");
    button.hidden = false;
    button.addEventListener("click", () => keys.showModal());
    const rows = () => {
      const titles = all("main a.task");
      const found = titles.length ? titles : all("main tbody tr").map((row) => one("a", row));
      return found.filter((link) => link && link.checkVisibility());
    };
    const move = (by) => {
      const links = rows();
      const place = document.activeElement.closest("tr, article, [data-run]");
      const at = links.findIndex((link) => link === document.activeElement || place?.contains(link));
      const next = links[at < 0 ? (by > 0 ? 0 : links.length - 1) : at + by];
      next?.focus();
      next?.scrollIntoView({ block: "nearest" });
    };
    const search = () => {
      const field = one("main input[type=search]");
      if (!field) { location.assign("/dashboard/runs#search"); return; }
      const fold = field.closest("details");
      if (fold) fold.open = true;
      field.focus();
      field.select();
    };
    document.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || event.isComposing) return;
      if (keys.open || event.target.closest("input, textarea, select, [contenteditable]")) return;
      if (event.key !== "?" && !on.checked) return;
      const act = {
        "/": search,
        "?": () => keys.showModal(),
        j: () => move(1),
        k: () => move(-1),
      }[event.key];
      if (!act || (one("main.run-page") && /[jk]/.test(event.key))) return;
      event.preventDefault();
      act();
    });
    if (location.hash === "#search") search();
  }

  // ---- views: queries of the list that this browser keeps by their names
  const viewList = one("#views");
  const save = one("#save-view"); // for those who may not save it in the store
  if (viewList) {
    const kept = () => { try { return JSON.parse(localStorage.getItem("views")) || {}; } catch { return {}; } };
    const draw = (views) => {
      for (const old of all(".kept", viewList)) old.remove();
      for (const [name, query] of Object.entries(views)) {
        const link = document.createElement("a");
        Object.assign(link, { textContent: name, href: `?${query}`, className: "kept" });
        const drop = document.createElement("button");
        Object.assign(drop, { type: "button", textContent: "×", className: "quiet kept" });
        drop.setAttribute("aria-label", `Forget the view ${name}`);
        drop.addEventListener("click", () => { const now = kept(); delete now[name]; keep(now); });
        viewList.append(link, drop);
      }
    };
    const keep = (views) => {
      try { localStorage.setItem("views", JSON.stringify(views)); } catch { /* for this page only */ }
      draw(views);
    };
    if (save) save.hidden = false;
    save?.addEventListener("click", () => {
      const query = new URLSearchParams(location.search);
      query.delete("cursor");
      const name = prompt("Name of this view")?.trim().slice(0, 40);
      if (name) keep({ ...kept(), [name]: query.toString() });
    });
    draw(kept());
  }

  const fragment = async (address) => {
    const answer = await fetch(address, { headers: { accept: "text/html" }, redirect: "error" });
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    return new DOMParser().parseFromString(await answer.text(), "text/html").body;
  };

  // ---- the changing part of a page; the focus is told when it is replaced, not when it is asked for
  const focusables = "a, button, input, select, textarea, summary, [tabindex]";
  const replaceLive = (place, nodes) => {
    const held = place.contains(document.activeElement) ? document.activeElement : null;
    const run = held?.closest("[data-run]");
    const at = run ? all(focusables, run).indexOf(held) : -1;
    const open = all("details", place).map((part) => part.open);
    place.replaceChildren(...nodes);
    all("details", place).forEach((part, n) => { part.open = open[n] ?? part.open; });
    if (!held) return;
    const row = run && one(`[data-run="${CSS.escape(run.dataset.run)}"]`, place);
    const again = held.id ? document.getElementById(held.id) : row && all(focusables, row)[at];
    again?.focus({ preventScroll: true });
  };

  // ---- one run: its chart and its transcript
  const runPage = (() => {
    const page = one("main.run-page");
    if (!page) return null;
    const transcript = one("#transcript");
    const address = location.pathname;
    let steps = [];
    let chosen = -1;      // a slot, not a step's number
    let following = false; // whether the reader scrolls, so that the cross-hair follows

    const read = () => { steps = JSON.parse(one("#steps-data").textContent); };
    const number = (value) => value.toFixed(2);

    const tally = (names) => [...new Set(names)].map((name) => {
      const times = names.filter((other) => other === name).length;
      return times > 1 ? `${name} ×${times}` : name;
    }).join(", ");
    const describe = (at) => {
      const parts = [`Step ${at.step}`, at.state];
      if (at.difficulty !== null) parts.push(`difficulty ${number(at.difficulty)}`);
      if (at.composite !== null) parts.push(`composite ${number(at.composite)}`);
      if (at.failed) parts.push("call failed");
      if (at.fired.length) parts.push(`fired ${at.fired.join(", ")}`);
      if (at.guidance.length) parts.push(`guidance ${tally(at.guidance)}`);
      if (at.model) parts.push(at.model);
      if (at.tokens) parts.push(`${at.tokens.toLocaleString("en")} tokens`);
      if (at.cost) parts.push(`$${at.cost.toPrecision(3)}`);
      return parts.join(" · ");
    };

    const mark = (slot) => {
      const at = steps[slot];
      if (!at) return;
      chosen = slot;
      const rows = one(".rows"), lane = one(".lane.tall"), cross = one("#cross");
      const left = lane.offsetLeft + (lane.clientWidth * (slot + 0.5)) / steps.length;
      cross.style.left = `${left}px`;
      cross.hidden = false;
      one("#readout").textContent = describe(at);
      const slider = one("#step-slider");
      slider.setAttribute("aria-valuenow", at.step);
      slider.setAttribute("aria-valuetext", describe(at));
      for (const card of all(".step.chosen")) card.classList.remove("chosen");
      one(`#step-${at.step}`)?.classList.add("chosen");
      return rows;
    };

    const adopt = (nodes, place) => {
      for (const node of nodes) {
        if (node.id && one(`#${node.id}`, transcript)) continue;
        if (place) transcript.insertBefore(node, place); else transcript.append(node);
      }
    };

    const show = async (slot, focus) => {
      const at = steps[slot];
      if (!at) return;
      mark(slot);
      let card = one(`#step-${at.step}`);
      if (!card) {
        const part = await fragment(`${address}/steps?after=${Math.max(-1, at.step - 3)}`);
        transcript.replaceChildren(...part.children);
        watch();
        card = one(`#step-${at.step}`);
      }
      if (!card) return;
      following = false;
      card.scrollIntoView({ block: "start", behavior: "instant" });
      mark(slot);
      if (focus) card.focus({ preventScroll: true });
    };

    const slotAt = (event) => {
      const box = one(".lane.tall").getBoundingClientRect();
      const share = (event.clientX - box.left) / box.width;
      return share < 0 || share > 1 ? -1 : Math.min(steps.length - 1, Math.floor(share * steps.length));
    };

    const slotOf = (step) => steps.findIndex((at) => at.step === Number(step));

    page.addEventListener("mousemove", (event) => {
      if (!event.target.closest(".rows")) return;
      const slot = slotAt(event);
      if (slot >= 0 && slot !== chosen) mark(slot);
    });
    page.addEventListener("click", (event) => {
      const more = event.target.closest("[data-more]");
      const marker = event.target.closest(".marker");
      const row = event.target.closest("table.steps a");
      if (more) {
        event.preventDefault();
        extend(more);
      } else if (marker) {
        event.preventDefault();
        show(slotOf(marker.dataset.step), true);
      } else if (row) {
        event.preventDefault();
        show(slotOf(row.textContent), true);
      } else if (event.target.closest(".rows")) {
        const slot = slotAt(event);
        if (slot >= 0) show(slot, false);
      }
    });

    document.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.target.closest("input, textarea, select")) return;
      if (/^[gw]$/.test(event.key) && one("#keys-on")?.checked === false) return;
      const last = steps.length - 1;
      const next = {
        ArrowLeft: Math.max(0, chosen - 1),
        ArrowRight: Math.min(last, chosen + 1),
        Home: 0,
        End: last,
        g: steps.findIndex((at, slot) => slot > chosen && at.guidance.length > 0),
      }[event.key];
      const slider = one("#step-slider");
      const here = event.target === slider || event.target.closest(".step") || event.target === document.body;
      if (event.key === "w" && here && chosen >= 0) {
        const wrong = one(`#step-${steps[chosen].step} [data-wrong][value="wrong"]`);
        if (wrong) wrong.click();
        return;
      }
      if (next === undefined || next < 0 || !here) return;
      if ((event.key === "Home" || event.key === "End") && event.target !== slider) return;
      event.preventDefault();
      show(next, event.target.closest(".step") !== null);
    });

    const extend = async (more) => {
      const before = more.dataset.more === "before";
      const part = await fragment(`${address}/steps?after=${more.dataset.after}`);
      const holder = more.closest(".more");
      const nodes = [...part.children].filter(
        (node) => node.matches(".step") || one(`[data-more="${more.dataset.more}"]`, node),
      );
      const place = before ? holder.nextElementSibling : null;
      const anchor = before ? place : null;
      const top = anchor?.getBoundingClientRect().top;
      holder.remove();
      adopt(nodes, place);
      if (anchor) scrollBy(0, anchor.getBoundingClientRect().top - top);
      watch();
    };

    // The cross-hair follows the card that is being read, once the reader scrolls: the page scrolls
    // to a chosen step as well, and what it passes on its way was not chosen.
    for (const kind of ["wheel", "touchmove", "pointerdown"]) {
      addEventListener(kind, () => { following = true; }, { passive: true });
    }
    const seen = new IntersectionObserver((entries) => {
      if (!following) return;
      const top = entries.find((entry) => entry.isIntersecting);
      if (top) mark(slotOf(top.target.dataset.step));
    }, { rootMargin: "-96px 0px -70% 0px" });
    const watch = () => { for (const card of all(".step", transcript)) seen.observe(card); };

    const refresh = async () => {
      const part = await fragment(`${address}?fragment=1`);
      const chosenStep = steps[chosen]?.step;
      replaceLive(one("#live-part"), part.children);
      read();
      if (chosenStep !== undefined) mark(slotOf(chosenStep));
      const cards = all(".step", transcript);
      const atEnd = !one('[data-more="after"]', transcript);
      if (!atEnd) return;
      // The newest card is replaced: its reply has become the thought of the next step.
      const last = cards.length ? Number(cards[cards.length - 1].dataset.step) : 0;
      const newest = await fragment(`${address}/steps?after=${last - 1}`);
      cards[cards.length - 1]?.remove();
      adopt([...newest.children].filter((node) => !one('[data-more="before"]', node)), null);
      watch();
    };

    read();
    watch();
    const wanted = /^#step-(\d+)$/.exec(location.hash);
    if (wanted) show(slotOf(wanted[1]), false);
    addEventListener("resize", () => { if (chosen >= 0) mark(chosen); });
    return { id: page.dataset.run, refresh };
  })();

  // ---- lists: fetch the changing part again, at most once per PERIOD_MS
  const list = async () => {
    const place = one('#live-part[data-live="list"]');
    const address = new URL(location.href);
    address.searchParams.set("fragment", "1");
    const part = await fragment(address);
    const before = new Map(all("[data-run]", place).map((row) => [row.dataset.run, row.dataset.key]));
    if (one("input:checked", place)) return; // runs are being chosen
    replaceLive(place, part.children);
    for (const row of all("[data-run]", place)) {
      if (before.get(row.dataset.run) !== row.dataset.key) row.classList.add("changed");
    }
  };

  // What is still being counted is looked at again until it is there.
  const livePart = one("#live-part");
  const light = one("#live");
  if (!livePart && one("[data-again]")) setTimeout(() => location.reload(), 1500);
  if (!livePart || !light) return;
  light.hidden = false;
  const PERIOD_MS = 1500;
  let due = false;
  let busy = false;
  let last = 0;
  const update = async () => {
    if (!due || busy || document.hidden) return;
    const wait = last + PERIOD_MS - performance.now();
    if (wait > 0) { setTimeout(update, wait); return; }
    due = false;
    busy = true;
    try { await (runPage ? runPage.refresh() : list()); } catch { showLive("off", "live off"); }
    last = performance.now();
    busy = false;
    if (one("[data-again]", livePart)) due = true;
    if (due) update();
  };
  const showLive = (state, text) => {
    light.dataset.state = state;
    one(".live-text", light).textContent = text;
  };
  const onChange = (event) => {
    const change = event.data ? JSON.parse(event.data) : {};
    if (runPage && change.run_id && change.run_id !== runPage.id) return;
    due = true;
    update();
  };
  const tenant = new URL(location.href).searchParams.get("tenant");
  const events = new EventSource(`/api/events${tenant ? `?tenant=${encodeURIComponent(tenant)}` : ""}`);
  let lost = false;
  events.addEventListener("ready", () => {
    showLive("on", "live");
    if (lost) { lost = false; due = true; update(); }
  });
  events.addEventListener("error", () => { lost = true; showLive("off", "reconnecting"); });
  for (const name of ["step", "outcome", "dropped"]) events.addEventListener(name, onChange);
  document.addEventListener("visibilitychange", update);
  if (one("[data-again]", livePart)) { due = true; setTimeout(update, PERIOD_MS); }
  addEventListener("pagehide", () => events.close());
})();
