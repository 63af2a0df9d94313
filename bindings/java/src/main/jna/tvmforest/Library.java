package tvmforest;

import com.sun.jna.Function;
import com.sun.jna.NativeLibrary;
import java.nio.ByteBuffer;
import java.nio.file.Path;
import java.util.Map;

/** The functions of a library, by JNA, for Java 17 to 21. */
final class Library implements AutoCloseable {
  private final NativeLibrary library;

  /** Throws UnsatisfiedLinkError where there is no library. */
  Library(Path path) {
    library = NativeLibrary.getInstance(
        path.toString(), Map.of(com.sun.jna.Library.OPTION_STRING_ENCODING, "UTF-8"));
  }

  private Function find(String name) {
    return library.getFunction("tvm_forest_" + name);
  }

  String text(String name) {
    return find(name).invokeString(new Object[0], false);
  }

  String name(String name, long k) {
    return find(name).invokeString(new Object[] {k}, false);
  }

  long count(String name) {
    return find(name).invokeLong(new Object[0]);
  }

  int check() {
    return find("check").invokeInt(new Object[0]);
  }

  int predict(ByteBuffer rows, long n, ByteBuffer margin, ByteBuffer value, int jobs) {
    return find("predict").invokeInt(new Object[] {rows, n, margin, value, jobs});
  }

  int labels(ByteBuffer rows, long n, ByteBuffer label, int jobs) {
    return find("predict_labels").invokeInt(new Object[] {rows, n, label, jobs});
  }

  @Override
  public void close() {
    library.close();
  }
}
