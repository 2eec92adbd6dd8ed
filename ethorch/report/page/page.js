"use strict";
// Sort tables and filter the table of layers. Charts are SVG and do not require scripts.

function value(row, column) {
  const cell = row.cells[column];
  return cell.dataset.v === undefined ? cell.textContent.trim() : cell.dataset.v === "" ? null : Number(cell.dataset.v);
}

function order(a, b) {
  if (a === null || b === null) return a === b ? 0 : a === null ? -1 : 1;
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
}

function sortBy(table, column) {
  const heads = [...table.tHead.rows[0].cells];
  const numeric = heads[column].classList.contains("n");
  const now = heads[column].getAttribute("aria-sort");
  const descending = now === null ? numeric : now === "ascending";
  heads.forEach((head) => head.removeAttribute("aria-sort"));
  heads[column].setAttribute("aria-sort", descending ? "descending" : "ascending");
  const rows = [...table.tBodies[0].rows].map((row) => [value(row, column), row]);
  rows.sort((a, b) => (descending ? order(b[0], a[0]) : order(a[0], b[0])));
  table.tBodies[0].append(...rows.map((pair) => pair[1]));
}

for (const table of document.querySelectorAll("table.sortable")) {
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    button.addEventListener("click", () => sortBy(table, column));
    head.replaceChildren(button);
  });
}

const layers = [...document.querySelectorAll("#layer-table tbody tr")];
const texts = new Map(layers.map((row) => [row, row.textContent.toLowerCase()]));
const search = document.getElementById("search");
const where = document.getElementById("where");
const bound = document.getElementById("bound");

function filter() {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const row of layers) {
    const fits =
      (!where.value || row.dataset.side === where.value) &&
      (!bound.value || row.dataset.bound === bound.value) &&
      words.every((word) => texts.get(row).includes(word));
    row.hidden = !fits;
    shown += fits;
  }
  document.getElementById("count").textContent = `${shown} of ${layers.length} layers`;
}
if (search) {
  for (const input of [search, where, bound]) input.addEventListener("input", filter);
  search.form.addEventListener("submit", (event) => event.preventDefault());
}
