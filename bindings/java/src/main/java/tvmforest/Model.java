package tvmforest;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;

/**
 * A model that {@code tvm-forest export --to java} has compiled. Any number of threads may use it at
 * once, and replace what it holds meanwhile.
 *
 * <p>Rows lie one behind the other, a missing value is NaN. They are {@code float[]} or {@code double[]}
 * as {@link #types} says; results are {@code double}, which holds every float. Each thread keeps room
 * for the largest batch that it has predicted.
 */
public final class Model implements AutoCloseable {
  /** Margins, which the trees add up to, and values: (n, outputs). */
  public record Result(double[] margins, double[] values) {}

  private static final ThreadLocal<ByteBuffer> ROOM =
      ThreadLocal.withInitial(() -> ByteBuffer.allocateDirect(1 << 12));

  /** A loaded library; users are the model that holds it and the calls in flight. */
  private static final class Loaded {
    final Library library;
    final String types;
    final int features, outputs, labels, classes;
    int users = 1;

    Loaded(Library library) {
      this.library = library;
      types = library.text("types");
      features = Math.toIntExact(library.count("features"));
      outputs = Math.toIntExact(library.count("outputs"));
      labels = Math.toIntExact(library.count("labels"));
      classes = Math.toIntExact(library.count("classes"));
    }

    void check(int code) {
      if (code != 0) throw new IllegalStateException(library.text("error"));
    }

    int width(int number) {
      return types.split(" ")[number].equals("float32") ? Float.BYTES : Double.BYTES;
    }

    String shape() {
      return features + " columns, " + outputs + " outputs, " + labels + " labels, " + classes
          + " classes, types " + types;
    }
  }

  private Loaded now;

  /**
   * Load a library.
   *
   * @throws IOException it is not there, or is none
   */
  public Model(Path path) throws IOException {
    now = load(path);
  }

  /**
   * Let calls that begin from now on use another library, with the same columns and results. Calls in
   * flight finish with the old one, which is unloaded after the last.
   */
  public void replace(Path path) throws IOException {
    Loaded next = load(path);
    String wrong;
    synchronized (this) {
      String was = now == null ? "none, for it is closed" : now.shape();
      wrong = was.equals(next.shape()) ? "" : path + ": " + next.shape() + ", and the model in use has " + was;
      if (wrong.isEmpty()) {
        Loaded old = now;
        now = next;
        next = old;
      }
    }
    release(next);
    if (!wrong.isEmpty()) throw new IllegalArgumentException(wrong);
  }

  /** Unload the library after the calls that are in flight. */
  @Override
  public void close() {
    Loaded old;
    synchronized (this) {
      old = now;
      now = null;
    }
    if (old != null) release(old);
  }

  /** Names of the types of rows, margins and values, each "float32" or "float64". */
  public String types() { return current().types; }

  public int features() { return current().features; }

  public int outputs() { return current().outputs; }

  public int labels() { return current().labels; }

  public int classes() { return current().classes; }

  /** The name of a column, or null. */
  public synchronized String featureName(int k) { return current().library.name("feature_name", k); }

  /** The name of a class, or null. */
  public synchronized String className(int k) { return current().library.name("class_name", k); }

  /** Probabilities of a classifier, else what the model predicts: (n, outputs). */
  public double[] predict(float[] rows, int n) { return both(rows, rows.length, n, 1).values(); }

  /** The same for a model that takes double. */
  public double[] predict(double[] rows, int n) { return both(rows, rows.length, n, 1).values(); }

  /** Margins and values of one call; jobs threads share out the rows, -1 for one on each core. */
  public Result both(float[] rows, int n, int jobs) { return both(rows, rows.length, n, jobs); }

  /** The same for a model that takes double. */
  public Result both(double[] rows, int n, int jobs) { return both(rows, rows.length, n, jobs); }

  /** Numbers of the chosen classes: (n, labels). */
  public long[] predictLabels(float[] rows, int n, int jobs) { return labels(rows, rows.length, n, jobs); }

  /** The same for a model that takes double. */
  public long[] predictLabels(double[] rows, int n, int jobs) { return labels(rows, rows.length, n, jobs); }

  private Result both(Object rows, int size, int n, int jobs) {
    Loaded here = take(rows, size, n);
    try {
      int results = Math.multiplyExact(n, here.outputs);
      int[] widths = {here.width(0), here.width(1), here.width(2)};
      ByteBuffer[] parts = room(new long[] {(long) size * widths[0], (long) results * widths[1], (long) results * widths[2]});
      write(rows, parts[0]);
      here.check(here.library.predict(parts[0], n, parts[1], parts[2], jobs));
      return new Result(read(parts[1], results, widths[1]), read(parts[2], results, widths[2]));
    } finally {
      release(here);
    }
  }

  private long[] labels(Object rows, int size, int n, int jobs) {
    Loaded here = take(rows, size, n);
    try {
      long[] found = new long[Math.multiplyExact(n, here.labels)];
      ByteBuffer[] parts = room(new long[] {(long) size * here.width(0), (long) found.length * Long.BYTES});
      write(rows, parts[0]);
      here.check(here.library.labels(parts[0], n, parts[1], jobs));
      parts[1].asLongBuffer().get(found);
      return found;
    } finally {
      release(here);
    }
  }

  /** Load by a name that nobody has used: by a known one the loader gives what it has loaded before. */
  private static Loaded load(Path path) throws IOException {
    Path folder = Files.createTempDirectory("tvmforest"), link = folder.resolve("model");
    try {
      Files.createSymbolicLink(link, path.toRealPath());
      Library library;
      try {
        library = new Library(link);
      } catch (IllegalArgumentException | UnsatisfiedLinkError error) {
        throw new IOException(path + ": " + error.getMessage(), error);
      }
      try {
        Loaded made = new Loaded(library);
        made.check(library.check());
        return made;
      } catch (RuntimeException | Error error) {
        library.close();
        throw error;
      }
    } finally {
      Files.deleteIfExists(link);
      Files.delete(folder);
    }
  }

  private synchronized Loaded current() {
    if (now == null) throw new IllegalStateException("the model is closed");
    return now;
  }

  private synchronized Loaded take(Object rows, int size, int n) {
    Loaded here = current();
    String kind = rows instanceof float[] ? "float32" : "float64";
    if (!here.types.startsWith(kind))
      throw new IllegalArgumentException("rows: " + (kind.equals("float32") ? "float[]; the model takes double[]" : "double[]; the model takes float[]"));
    if (n < 0 || size != (long) n * here.features) {
      String columns = n > 0 && size % n == 0 ? ", which have " + size / n + " columns" : "";
      throw new IllegalArgumentException("rows: " + size + " numbers for " + n + " rows" + columns
          + "; the model has " + here.features + " columns");
    }
    ++here.users;
    return here;
  }

  private void release(Loaded loaded) {
    boolean last;
    synchronized (this) {
      last = --loaded.users == 0;
    }
    if (last) loaded.library.close();
  }

  /** Pieces of memory of this thread, each on a boundary of 64 bytes. */
  private static ByteBuffer[] room(long[] sizes) {
    long whole = 64;
    for (long size : sizes) whole += (size + 63) / 64 * 64;
    if (ROOM.get().capacity() < whole) ROOM.set(ByteBuffer.allocateDirect(Math.toIntExact(whole)));
    ByteBuffer all = ROOM.get().alignedSlice(64);
    ByteBuffer[] parts = new ByteBuffer[sizes.length];
    int at = 0;
    for (int k = 0; k < sizes.length; at += (int) ((sizes[k++] + 63) / 64 * 64))
      parts[k] = all.slice(at, (int) sizes[k]).order(ByteOrder.nativeOrder());
    return parts;
  }

  private static void write(Object rows, ByteBuffer to) {
    if (rows instanceof float[] narrow) to.asFloatBuffer().put(narrow);
    else to.asDoubleBuffer().put((double[]) rows);
  }

  private static double[] read(ByteBuffer from, int count, int width) {
    double[] found = new double[count];
    for (int k = 0; k < count; ++k)
      found[k] = width == Float.BYTES ? from.getFloat(4 * k) : from.getDouble(8 * k);
    return found;
  }
}
