// Compares a model with what Python predicts.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { pathToFileURL } from "node:url";
import { test } from "node:test";
import { Worker } from "node:worker_threads";
import { parse, same } from "./expected.js";
import { Model, ModelError } from "./index.js";

const here = new URL(".", import.meta.url);
// The folder of another model with the same columns and results, to turn to.
const other = process.env.TVM_FOREST_OTHER ? pathToFileURL(process.env.TVM_FOREST_OTHER + "/") : here;
const e = parse(await readFile(new URL("expected.txt", here), "utf8"));
const model = await Model.open(new URL("model.wasm", here));

test("it predicts the bits of Python", () => {
  const { margins, values } = model.both(e.rows, e.n);
  assert.ok(same(margins, e.margins));
  assert.ok(same(values, e.values, e.ulps));
  if (e.labels > 0) assert.deepEqual(model.predictLabels(e.rows, e.n), e.classes);
  else assert.throws(() => model.predictLabels(e.rows, e.n), new ModelError("the model has no classes"));
});

test("batches have any size", () => {
  for (const n of [0, 1, 7, e.n]) {
    const margins = model.margins(e.rows.slice(0, n * e.features), n);
    assert.ok(same(margins, e.margins.slice(0, n * e.outputs)), `${n} rows`);
  }
  const [many, count] = [Array(100).fill(e.rows).flat(), 100 * e.n];
  assert.ok(same(model.margins(many, count), Array(100).fill(e.margins).flat()), "memory grows");
});

test("errors name what is wrong", async () => {
  const few = e.rows.slice(0, e.n * (e.features - 1));
  const message = new RegExp(`which have ${e.features - 1} columns; the model has ${e.features} columns$`);
  assert.throws(() => model.predict(few, e.n), { name: "RangeError", message });
  await assert.rejects(Model.open(new URL("no_such_model.wasm", here)), /no_such_model.wasm/);
});

test("each worker predicts with its own instance", async () => {
  const code = `
    import { parentPort, workerData } from "node:worker_threads";
    const { Model } = await import(workerData.index);
    const model = await Model.open(workerData.module);
    for (let k = 0; k < 50; ++k) model.margins(workerData.rows, workerData.n);
    parentPort.postMessage(model.margins(workerData.rows, workerData.n));`;
  const data = { index: new URL("index.js", here).href, module: model.module, rows: e.rows, n: e.n };
  const run = () =>
    new Promise((resolve, reject) => {
      const worker = new Worker(new URL(`data:text/javascript,${encodeURIComponent(code)}`), { workerData: data });
      worker.on("message", resolve).on("error", reject);
    });
  for (const margins of await Promise.all([run(), run(), run()])) assert.ok(same(margins, e.margins));
});

test("a model is replaced while others predict", async () => {
  const turned = await Model.open(model.module);
  const changed = (await Model.open(new URL("model.wasm", other))).margins(e.rows, e.n);
  const replaced = turned.replace(new URL("model.wasm", other));
  let calls = 0;
  for (let done = false; !done; ++calls) {
    const found = turned.margins(e.rows, e.n);
    assert.ok(same(found, e.margins) || same(found, changed));
    done = await Promise.race([replaced.then(() => true), new Promise((go) => setImmediate(go, false))]);
  }
  assert.ok(calls > 0 && same(turned.margins(e.rows, e.n), changed));
});
