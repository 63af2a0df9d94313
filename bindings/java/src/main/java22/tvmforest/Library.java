package tvmforest;

import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemoryLayout;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.SymbolLookup;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandle;
import java.nio.ByteBuffer;
import java.nio.file.Path;

/** The functions of a library, by the foreign function API of Java 22 and newer. */
final class Library implements AutoCloseable {
  private static final ValueLayout.OfInt INT = ValueLayout.JAVA_INT;
  private static final ValueLayout.OfLong LONG = ValueLayout.JAVA_LONG;
  private static final MemoryLayout ADDRESS = ValueLayout.ADDRESS;

  private final Arena arena = Arena.ofShared();
  private final SymbolLookup symbols;
  private final MethodHandle predict, labels;

  /** Throws IllegalArgumentException where there is no library. */
  Library(Path path) {
    try {
      // As a text: the name of a path would be that of the file that it leads to.
      symbols = SymbolLookup.libraryLookup(path.toString(), arena);
      predict = find("predict", FunctionDescriptor.of(INT, ADDRESS, LONG, ADDRESS, ADDRESS, INT));
      labels = find("predict_labels", FunctionDescriptor.of(INT, ADDRESS, LONG, ADDRESS, INT));
    } catch (RuntimeException error) {
      arena.close();
      throw error;
    }
  }

  private MethodHandle find(String name, FunctionDescriptor type) {
    MemorySegment at = symbols.find("tvm_forest_" + name).orElseThrow(
        () -> new IllegalArgumentException("the library has no function tvm_forest_" + name));
    return Linker.nativeLinker().downcallHandle(at, type);
  }

  private interface Call<T> {
    T run() throws Throwable;
  }

  private static <T> T run(Call<T> call) {
    try {
      return call.run();
    } catch (RuntimeException | Error error) {
      throw error;
    } catch (Throwable error) {
      throw new IllegalStateException(error);
    }
  }

  private static String read(MemorySegment at) {
    return at.equals(MemorySegment.NULL) ? null : at.reinterpret(Long.MAX_VALUE).getString(0);
  }

  String text(String name) {
    return run(() -> read((MemorySegment) find(name, FunctionDescriptor.of(ADDRESS)).invokeExact()));
  }

  String name(String name, long k) {
    return run(() -> read((MemorySegment) find(name, FunctionDescriptor.of(ADDRESS, LONG)).invokeExact(k)));
  }

  long count(String name) {
    return run(() -> (long) find(name, FunctionDescriptor.of(LONG)).invokeExact());
  }

  int check() {
    return run(() -> (int) find("check", FunctionDescriptor.of(INT)).invokeExact());
  }

  int predict(ByteBuffer rows, long n, ByteBuffer margin, ByteBuffer value, int jobs) {
    return run(() -> (int) predict.invokeExact(MemorySegment.ofBuffer(rows), n,
        MemorySegment.ofBuffer(margin), MemorySegment.ofBuffer(value), jobs));
  }

  int labels(ByteBuffer rows, long n, ByteBuffer label, int jobs) {
    return run(() -> (int) labels.invokeExact(MemorySegment.ofBuffer(rows), n, MemorySegment.ofBuffer(label), jobs));
  }

  @Override
  public void close() {
    arena.close();
  }
}
