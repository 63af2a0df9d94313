package tvmforest;

import java.util.Arrays;
import java.util.stream.Stream;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.TestFactory;

/** Lets Maven run the tests, which by themselves need no library. */
class JUnitTest {
  @TestFactory
  Stream<DynamicTest> model() {
    return Arrays.stream(ModelTest.class.getMethods())
        .filter(test -> test.getName().startsWith("test"))
        .map(test -> DynamicTest.dynamicTest(test.getName(), () -> test.invoke(new ModelTest())));
  }
}
