package tvmforest;

import java.io.IOException;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Scanner;
import java.util.concurrent.atomic.AtomicInteger;

/** Compares a model with what Python predicts, which expected.txt holds as bits. */
public class ModelTest {
  static final Path HERE = Path.of(".");

  /** Folder of another model with the same columns and results, to turn to. */
  static final Path OTHER = Path.of(System.getenv().getOrDefault("TVM_FOREST_OTHER", "."));

  static final class Expected {
    final int features, outputs, labels, n, ulps;
    final double[] rows, margins, values;
    final long[] classes;
    boolean isNarrow = true;

    Expected(Path folder) throws IOException {
      try (Scanner words = new Scanner(folder.resolve("expected.txt"))) {
        features = words.nextInt();
        outputs = words.nextInt();
        labels = words.nextInt();
        n = words.nextInt();
        ulps = words.nextInt();
        rows = new double[n * features];
        margins = new double[n * outputs];
        values = new double[n * outputs];
        classes = new long[n * labels];
        for (int i = 0; i < n; ++i) {
          for (int k = 0; k < features; ++k) {
            String word = words.next();
            isNarrow = word.length() == 8;
            rows[i * features + k] = number(word);
          }
          for (int k = 0; k < outputs; ++k) margins[i * outputs + k] = number(words.next());
          for (int k = 0; k < outputs; ++k) values[i * outputs + k] = number(words.next());
          for (int k = 0; k < labels; ++k) classes[i * labels + k] = words.nextLong();
        }
      }
    }

    static double number(String word) {
      return word.length() == 8
          ? Float.intBitsToFloat(Integer.parseUnsignedInt(word, 16))
          : Double.longBitsToDouble(Long.parseUnsignedLong(word, 16));
    }

    Model.Result predict(Model model, double[] rows, int n, int jobs) {
      return isNarrow ? model.both(narrow(rows), n, jobs) : model.both(rows, n, jobs);
    }

    long[] labels(Model model) {
      return isNarrow ? model.predictLabels(narrow(rows), n, 1) : model.predictLabels(rows, n, 1);
    }

    static float[] narrow(double[] rows) {
      float[] found = new float[rows.length];
      for (int k = 0; k < rows.length; ++k) found[k] = (float) rows[k];
      return found;
    }
  }

  static void require(boolean holds, String what) {
    if (!holds) throw new AssertionError(what);
  }

  static boolean same(double[] a, double[] b, int ulps) {
    boolean equal = a.length == b.length;
    for (int k = 0; k < a.length && equal; ++k)
      equal = Double.doubleToLongBits(a[k]) == Double.doubleToLongBits(b[k])
          || (ulps > 0 && Math.abs(a[k] - b[k]) <= ulps * Math.ulp(b[k]));
    return equal;
  }

  static Path libraryOf(Path folder) {
    Path found = folder.resolve("libmodel.dylib");
    return Files.exists(found) ? found : folder.resolve("libmodel.so");
  }

  static String messageOf(Class<? extends Exception> kind, Runnable call) {
    try {
      call.run();
    } catch (RuntimeException error) {
      require(kind.isInstance(error), "another error: " + error);
      return error.getMessage();
    }
    throw new AssertionError("no error");
  }

  public void testPredictsTheBitsOfPython() throws IOException {
    Expected e = new Expected(HERE);
    try (Model model = new Model(libraryOf(HERE))) {
      for (int jobs : new int[] {1, -1}) {
        Model.Result found = e.predict(model, e.rows, e.n, jobs);
        require(same(found.margins(), e.margins, 0), "margins");
        require(same(found.values(), e.values, e.ulps), "values");
      }
      if (e.labels > 0) require(Arrays.equals(e.labels(model), e.classes), "labels");
      else require(messageOf(IllegalStateException.class, () -> e.labels(model)).equals("the model has no classes"), "no classes");
    }
  }

  public void testBatchesOfAnySize() throws IOException {
    Expected e = new Expected(HERE);
    try (Model model = new Model(libraryOf(HERE))) {
      for (int n : new int[] {0, 1, 7, e.n}) {
        double[] margins = e.predict(model, Arrays.copyOf(e.rows, n * e.features), n, 1).margins();
        require(same(margins, Arrays.copyOf(e.margins, n * e.outputs), 0), n + " rows");
      }
    }
  }

  public void testErrorsNameWhatIsWrong() throws IOException {
    Expected e = new Expected(HERE);
    Model model = new Model(libraryOf(HERE));
    double[] few = Arrays.copyOf(e.rows, e.n * (e.features - 1));
    String text = messageOf(IllegalArgumentException.class, () -> e.predict(model, few, e.n, 1));
    require(text.endsWith("which have " + (e.features - 1) + " columns; the model has " + e.features + " columns"), text);
    text = messageOf(IllegalArgumentException.class, () -> {
      if (e.isNarrow) model.predict(e.rows, e.n);
      else model.predict(Expected.narrow(e.rows), e.n);
    });
    require(text.contains("; the model takes "), text);
    text = messageOf(IllegalStateException.class, () -> e.predict(model, e.rows, e.n, 0));
    require(text.equals("n_jobs is neither positive nor -1"), text);
    model.close();
    text = messageOf(IllegalStateException.class, () -> e.predict(model, e.rows, e.n, 1));
    require(text.equals("the model is closed"), text);
    try {
      new Model(Path.of("no such library.so")).close();
      require(false, "no error");
    } catch (IOException error) {
      require(error.getMessage().contains("no such library.so"), error.getMessage());
    }
  }

  public void testAModelIsReplacedWhileOthersPredict() throws Exception {
    Expected e = new Expected(HERE);
    Path folder = Files.createTempDirectory("tvmforest_test").toRealPath(), file = folder.resolve("turned.so");
    Files.copy(libraryOf(HERE), file);
    Model model = new Model(file);
    double[] changed;
    try (Model next = new Model(libraryOf(OTHER))) {
      changed = e.predict(next, e.rows, e.n, 1).margins();
    }
    AtomicInteger calls = new AtomicInteger(), wrong = new AtomicInteger();
    List<Thread> threads = new ArrayList<>();
    for (int k = 0; k < 4; ++k) {
      threads.add(new Thread(() -> {
        for (int i = 0; i < 200; ++i) {
          double[] found;
          try {
            found = e.predict(model, e.rows, e.n, 1).margins();
          } catch (RuntimeException error) {
            found = new double[0];
          }
          if (!same(found, e.margins, 0) && !same(found, changed, 0)) wrong.incrementAndGet();
          calls.incrementAndGet();
        }
      }));
      threads.get(k).start();
    }
    while (calls.get() < 100) Thread.onSpinWait();
    // The file is replaced while its library is in use; the new one has the same name.
    Files.copy(libraryOf(OTHER), folder.resolve("new"));
    Files.move(folder.resolve("new"), file, StandardCopyOption.ATOMIC_MOVE, StandardCopyOption.REPLACE_EXISTING);
    model.replace(file);
    for (Thread thread : threads) thread.join();
    require(wrong.get() == 0, wrong + " wrong predictions");
    require(same(e.predict(model, e.rows, e.n, 1).margins(), changed, 0), "the new model");
    require(!isMapped(file + " (deleted)"), "the old library is still loaded");
    require(isMapped(file.toString()) || !Files.exists(Path.of("/proc/self/maps")), "it is not loaded");
    model.close();
    require(!isMapped(file.toString()), "the library is still loaded");
    Files.delete(file);
    Files.delete(folder);
  }

  static boolean isMapped(String name) throws IOException {
    Path maps = Path.of("/proc/self/maps"); // only Linux has it
    return Files.exists(maps) && Files.readString(maps).contains(name);
  }

  /** Run all tests, where there is no Maven. */
  public static void main(String[] none) throws Exception {
    for (Method test : ModelTest.class.getMethods()) {
      if (!test.getName().startsWith("test")) continue;
      try {
        test.invoke(new ModelTest());
      } catch (InvocationTargetException error) {
        System.out.println("failed: " + test.getName());
        throw error;
      }
      System.out.println("ok: " + test.getName());
    }
    System.out.println("all tests passed");
  }
}
