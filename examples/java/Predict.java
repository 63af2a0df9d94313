import com.sun.jna.Library;
import com.sun.jna.Native;
import java.util.ArrayList;
import java.util.List;
import java.util.Scanner;

/** Predicts a batch through JNA, which finds the library by the property jna.library.path. */
public class Predict {
  interface Iris extends Library {
    String iris_error();
    long iris_features();
    long iris_outputs();
    int iris_predict(float[] rows, long n, float[] margin, float[] value, int jobs);
    int iris_predict_labels(float[] rows, long n, long[] label, int jobs);
    String iris_class_name(long number);
  }

  static final Iris IRIS = Native.load("iris", Iris.class);

  static void check(int code) {
    if (code != 0) throw new IllegalStateException(IRIS.iris_error());
  }

  public static void main(String[] arguments) {
    List<Float> given = new ArrayList<>();
    try (Scanner scanner = new Scanner(System.in)) {
      while (scanner.hasNext()) given.add(Float.parseFloat(scanner.next()));
    }
    float[] rows = new float[given.size()];
    for (int i = 0; i < rows.length; ++i) rows[i] = given.get(i);
    int n = rows.length / (int) IRIS.iris_features(), outputs = (int) IRIS.iris_outputs();
    float[] margin = new float[n * outputs], value = new float[n * outputs];
    long[] label = new long[n];
    check(IRIS.iris_predict(rows, n, margin, value, -1));
    check(IRIS.iris_predict_labels(rows, n, label, -1));
    for (int i = 0; i < n; ++i) {
      for (int k = 0; k < outputs; ++k) System.out.print(value[i * outputs + k] + " ");
      System.out.println(IRIS.iris_class_name(label[i]));
    }
  }
}
