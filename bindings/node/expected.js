// What Python predicts, as expected.txt holds it; for node and browsers.

function number(word) {
  const view = new DataView(new ArrayBuffer(8));
  view.setBigUint64(0, BigInt("0x" + word));
  return word.length === 8 ? view.getFloat32(4) : view.getFloat64(0);
}

export function parse(text) {
  const [head, ...lines] = text.trim().split("\n").map((line) => line.split(" "));
  const [features, outputs, labels, n, ulps] = head.map(Number);
  const e = { features, outputs, labels, n, ulps, rows: [], margins: [], values: [], classes: [] };
  for (const line of lines) {
    e.rows.push(...line.splice(0, features).map(number));
    e.margins.push(...line.splice(0, outputs).map(number));
    e.values.push(...line.splice(0, outputs).map(number));
    e.classes.push(...line.map(Number));
  }
  return e;
}

export function same(a, b, ulps = 0) {
  const near = (x, y) => ulps > 0 && Math.abs(x - y) <= ulps * Math.abs(y) * 2.3e-16;
  return a.length === b.length && Array.from(a).every((x, k) => Object.is(x, b[k]) || near(x, b[k]));
}
