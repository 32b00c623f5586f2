// Views: what the address keeps of the page, under names that this browser keeps.

const shelf = `harness-views ${document.title}`;

function kept() {
  try {
    const found = JSON.parse(localStorage.getItem(shelf) || "[]");
    return Array.isArray(found) ? found.filter((each) => each.length === 2 && each.every((own) => typeof own === "string")) : [];
  } catch { return []; }
}

function keep(views) {
  try { localStorage.setItem(shelf, JSON.stringify(views)); return true; } catch { return false; }
}

const make = (name, properties, ...children) => {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
};

function makeViews() {
  const list = make("ul", { className: "views" }), said = make("p", { className: "setting" });
  said.setAttribute("role", "status");
  const name = make("input", { type: "text", maxLength: 60, placeholder: "name" });
  name.setAttribute("aria-label", "Name of the view");
  const button = (text, action) => make("button", { type: "button", textContent: text, onclick: action });
  const now = () => (location.hash.startsWith("#?") ? location.hash : "#?");
  const fill = () => list.replaceChildren(...kept().map(([own, hash]) => {
    const link = make("a", { href: hash.startsWith("#?") ? hash : "#?", textContent: own });
    const drop = button("✕", () => { keep(kept().filter((each) => each[0] !== own)); fill(); });
    drop.setAttribute("aria-label", `Forget ${own}`);
    return make("li", {}, link, " ", drop);
  }));
  const save = button("Save", () => {
    const own = name.value.trim();
    if (!own) { said.textContent = "Give the view a name."; return; }
    const done = keep([...kept().filter((each) => each[0] !== own), [own, now()]]);
    said.textContent = done ? `Saved as “${own}” in this browser.` : "This browser keeps nothing for this page: copy the link.";
    fill();
  });
  const copy = button("Copy link", async () => {
    const link = location.href.split("#")[0] + now();
    try { await navigator.clipboard.writeText(link); said.textContent = "Copied."; } catch { said.textContent = link; }
  });
  name.addEventListener("keydown", (event) => { if (event.key === "Enter") save.click(); });
  fill();
  const menu = make("details", { className: "menu", id: "views" }, make("summary", { textContent: "Views" }),
    make("div", { className: "choices" }, list, make("p", {}, name, " ", save, " ", copy), said));
  menu.setAttribute("name", "filter");
  document.getElementById("reset").before(menu);
}

makeViews();
