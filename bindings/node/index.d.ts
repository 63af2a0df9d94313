/** Numbers of rows, one row behind the other; NaN is a missing value. They are rounded to the type of the model. */
export type Rows = Float32Array | Float64Array | readonly number[];

/** Where a model is: a URL, its bytes, or a module that is compiled already. */
export type Source = string | URL | ArrayBuffer | ArrayBufferView | WebAssembly.Module;

export interface Shape {
  /** Columns of a row. */
  features: number;
  /** Margins and values of a row. */
  outputs: number;
  /** Labels of a row, 0 if the model has no classes. */
  labels: number;
  /** Classes that have names. */
  classes: number;
  /** Types of rows, margins and values. */
  types: ("float32" | "float64")[];
}

/** What the compiled code refuses. */
export class ModelError extends Error {}

/** A model. Calls run on the thread that makes them; each worker opens its own, from `module`. */
export class Model {
  private constructor(instance: never);
  /** Load a model. */
  static open(source: Source): Promise<Model>;
  /** Let calls from then on use another model, with the same columns and results. */
  replace(source: Source): Promise<void>;
  /** The compiled module, which can be sent to a worker. */
  readonly module: WebAssembly.Module;
  readonly shape: Shape;
  featureName(k: number): string | null;
  className(k: number): string | null;
  /** Margins, which the trees add up to, and values: (n, outputs). Throws RangeError for other columns. */
  both(rows: Rows, n: number): { margins: Float32Array | Float64Array; values: Float32Array | Float64Array };
  /** Probabilities of a classifier, else what the model predicts: (n, outputs). */
  predict(rows: Rows, n: number): Float32Array | Float64Array;
  /** What the trees add up to: (n, outputs). */
  margins(rows: Rows, n: number): Float32Array | Float64Array;
  /** Numbers of the chosen classes: (n, labels). */
  predictLabels(rows: Rows, n: number): number[];
}
