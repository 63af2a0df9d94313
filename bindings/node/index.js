// A model that `tvm-forest export --to node` has compiled, for node and browsers.
//
//   import { Model } from "tvmforest";
//   const model = await Model.open(new URL("model.wasm", import.meta.url));
//   const values = model.predict(rows, n);

/** What the compiled code refuses. */
export class ModelError extends Error {
  name = "ModelError";
}

const ARRAYS = { float32: Float32Array, float64: Float64Array };
const NOT_SUPPORTED = 52; // of WASI

/** Return functions of the system of which the model needs none: each says that it is not there. */
function imports(module) {
  const found = {};
  for (const { module: from, name, kind } of WebAssembly.Module.imports(module)) {
    if (kind !== "function") throw new ModelError(`the module wants ${from}.${name}, a ${kind}`);
    (found[from] ??= {})[name] = () => NOT_SUPPORTED;
  }
  return found;
}

async function compile(source) {
  if (source instanceof WebAssembly.Module) return source;
  if (source instanceof ArrayBuffer || ArrayBuffer.isView(source)) return WebAssembly.compile(source);
  const url = new URL(source, globalThis.document?.baseURI);
  if (url.protocol === "file:" && globalThis.process?.versions?.node) {
    const { readFile } = await import("node:fs/promises");
    return WebAssembly.compile(await readFile(url));
  }
  const answer = await fetch(url);
  if (!answer.ok) throw new ModelError(`${url}: ${answer.status} ${answer.statusText}`);
  return WebAssembly.compile(await answer.arrayBuffer());
}

/** One instance of a module. */
class Instance {
  static async of(source) {
    const module = await compile(source);
    return new Instance(module, await WebAssembly.instantiate(module, imports(module)));
  }

  constructor(module, instance) {
    this.module = module;
    this.c = instance.exports;
    this.c._initialize?.();
    const types = this.text("types").split(" ");
    const [features, outputs, labels, classes] = ["features", "outputs", "labels", "classes"].map((name) =>
      Number(this.c[`tvm_forest_${name}`]()),
    );
    this.shape = { features, outputs, labels, classes, types };
    this.check(this.c.tvm_forest_check());
  }

  text(name, ...numbers) {
    const at = this.c[`tvm_forest_${name}`](...numbers.map(BigInt));
    if (at === 0) return null;
    const bytes = new Uint8Array(this.c.memory.buffer);
    const end = bytes.indexOf(0, at);
    return new TextDecoder().decode(bytes.subarray(at, end));
  }

  check(code) {
    if (code !== 0) throw new ModelError(this.text("error"));
  }

  /** Call a function with rows and room for results; return copies of these. */
  call(name, given, n, kinds, sizes) {
    const { features, types } = this.shape;
    const kind = ARRAYS[types[0]];
    const rows = given instanceof kind ? given : kind.from(given);
    if (!Number.isInteger(n) || n < 0 || rows.length !== n * features) {
      const columns = n > 0 && rows.length % n === 0 ? `, which have ${rows.length / n} columns` : "";
      throw new RangeError(
        `rows: ${rows.length} numbers for ${n} rows${columns}; the model has ${features} columns`,
      );
    }
    const places = [];
    const room = (bytes) => {
      const at = this.c.malloc(bytes + 8);
      if (at === 0) throw new ModelError("out of memory");
      places.push(at);
      return at;
    };
    try {
      const at = room(rows.byteLength);
      const results = kinds.map((array, k) => room(sizes[k] * array.BYTES_PER_ELEMENT));
      new kind(this.c.memory.buffer, at, rows.length).set(rows); // malloc may have moved the memory
      this.check(this.c[`tvm_forest_${name}`](at, BigInt(n), ...results, 1));
      return kinds.map((array, k) => new array(this.c.memory.buffer, results[k], sizes[k]).slice());
    } finally {
      for (const at of places) this.c.free(at);
    }
  }
}

/** A model. Calls run on the thread that makes them; each worker opens its own, from `module`. */
export class Model {
  #now;

  constructor(instance) {
    if (!(instance instanceof Instance)) throw new TypeError("use Model.open");
    this.#now = instance;
  }

  /** Load a model by a URL, its bytes, or the module of another one. */
  static async open(source) {
    return new Model(await Instance.of(source));
  }

  /** Let calls from then on use another model, with the same columns and results. */
  async replace(source) {
    const next = await Instance.of(source);
    const [is, was] = [next, this.#now].map(({ shape }) => JSON.stringify(shape));
    if (is !== was) throw new ModelError(`replace: ${is}, and the model in use has ${was}`);
    this.#now = next;
  }

  get module() {
    return this.#now.module;
  }

  get shape() {
    return { ...this.#now.shape };
  }

  featureName(k) {
    return this.#now.text("feature_name", k);
  }

  className(k) {
    return this.#now.text("class_name", k);
  }

  both(rows, n) {
    const { outputs, types } = this.#now.shape;
    const kinds = [ARRAYS[types[1]], ARRAYS[types[2]]];
    const [margins, values] = this.#now.call("predict", rows, n, kinds, [n * outputs, n * outputs]);
    return { margins, values };
  }

  predict(rows, n) {
    return this.both(rows, n).values;
  }

  margins(rows, n) {
    return this.both(rows, n).margins;
  }

  predictLabels(rows, n) {
    const [found] = this.#now.call("predict_labels", rows, n, [BigInt64Array], [n * this.#now.shape.labels]);
    return Array.from(found, Number);
  }
}
