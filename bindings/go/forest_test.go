package tvmforest

import (
	"bufio"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// expected is what Python predicts, as expected.txt holds it.
type expected struct {
	features, outputs, labels, n, ulps int
	rows                               []Row
	margins                            []Margin
	values                             []Value
	classes                            []int64
}

func number[T float32 | float64](t *testing.T, word string) T {
	bits, err := strconv.ParseUint(word, 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	if len(word) == 8 {
		return T(math.Float32frombits(uint32(bits)))
	}
	return T(math.Float64frombits(bits))
}

func read(t *testing.T, folder string) (e expected) {
	file, err := os.Open(filepath.Join(folder, "expected.txt"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	words := bufio.NewScanner(file)
	words.Split(bufio.ScanWords)
	next := func() string { words.Scan(); return words.Text() }
	for _, to := range []*int{&e.features, &e.outputs, &e.labels, &e.n, &e.ulps} {
		*to, _ = strconv.Atoi(next())
	}
	for i := 0; i < e.n; i++ {
		for k := 0; k < e.features; k++ {
			e.rows = append(e.rows, number[Row](t, next()))
		}
		for k := 0; k < e.outputs; k++ {
			e.margins = append(e.margins, number[Margin](t, next()))
		}
		for k := 0; k < e.outputs; k++ {
			e.values = append(e.values, number[Value](t, next()))
		}
		for k := 0; k < e.labels; k++ {
			label, _ := strconv.ParseInt(next(), 10, 64)
			e.classes = append(e.classes, label)
		}
	}
	return e
}

func same[T float32 | float64](a, b []T, ulps int) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		x, y := float64(a[i]), float64(b[i])
		near := math.Abs(x-y) <= float64(ulps)*math.Abs(y)*2.3e-16
		if math.Float64bits(x) != math.Float64bits(y) && !(x != x && y != y) && !(ulps > 0 && near) {
			return false
		}
	}
	return true
}

func libraryOf(folder string) string {
	if found := filepath.Join(folder, "libmodel.dylib"); exists(found) {
		return found
	}
	return filepath.Join(folder, "libmodel.so")
}

func exists(path string) bool { _, err := os.Stat(path); return err == nil }

func open(t *testing.T) (*Model, expected) {
	model, err := Open(libraryOf("."))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(model.Close)
	return model, read(t, ".")
}

func TestPredictsTheBitsOfPython(t *testing.T) {
	model, e := open(t)
	for _, jobs := range []int{1, -1} {
		margins, values, err := model.Both(e.rows, e.n, jobs)
		if err != nil || !same(margins, e.margins, 0) || !same(values, e.values, e.ulps) {
			t.Fatal("other bits", err)
		}
	}
	labels, err := model.PredictLabels(e.rows, e.n, 1)
	if e.labels == 0 && (err == nil || err.Error() != "the model has no classes") {
		t.Fatal(err)
	}
	if e.labels > 0 && (err != nil || !reflect.DeepEqual(labels, e.classes)) {
		t.Fatal("other labels", err)
	}
}

func TestBatchesOfAnySize(t *testing.T) {
	model, e := open(t)
	for _, n := range []int{0, 1, 7, e.n} {
		margins, err := model.Margins(e.rows[:n*e.features], n, 1)
		if err != nil || !same(margins, e.margins[:n*e.outputs], 0) {
			t.Fatal(n, err)
		}
	}
}

func TestErrorsNameWhatIsWrong(t *testing.T) {
	model, e := open(t)
	_, err := model.Predict(e.rows[:e.n*(e.features-1)], e.n, 1)
	want := fmt.Sprintf("which have %d columns; the model has %d columns", e.features-1, e.features)
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Fatal(err)
	}
	if _, err = model.Predict(e.rows, e.n, 0); err == nil || err.Error() != "n_jobs is neither positive nor -1" {
		t.Fatal(err)
	}
	if _, err = Open("no such library.so"); err == nil || !strings.Contains(err.Error(), "no such library.so") {
		t.Fatal(err)
	}
	model.Close()
	if _, err = model.Predict(e.rows, e.n, 1); err != ErrClosed {
		t.Fatal(err)
	}
}

func copyFile(t *testing.T, from, to string) {
	data, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to+".new", data, 0o755)
	}
	if err == nil {
		err = os.Rename(to+".new", to)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TVM_FOREST_OTHER may name the folder of another model with the same columns and results.
func TestAModelIsReplacedWhileOthersPredict(t *testing.T) {
	_, e := open(t)
	other := os.Getenv("TVM_FOREST_OTHER")
	if other == "" {
		other = "."
	}
	file := filepath.Join(t.TempDir(), "turned.so")
	copyFile(t, libraryOf("."), file)
	model, err := Open(file)
	if err != nil {
		t.Fatal(err)
	}
	next, err := Open(libraryOf(other))
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	changed, _ := next.Margins(e.rows, e.n, 1)
	var group sync.WaitGroup
	var calls, wrong int64
	for k := 0; k < 4; k++ {
		group.Add(1)
		go func() {
			defer group.Done()
			for i := 0; i < 200; i++ {
				found, err := model.Margins(e.rows, e.n, 1)
				if err != nil || (!same(found, e.margins, 0) && !same(found, changed, 0)) {
					atomic.AddInt64(&wrong, 1)
				}
				atomic.AddInt64(&calls, 1)
			}
		}()
	}
	for atomic.LoadInt64(&calls) < 100 {
	}
	// The file is replaced while its library is in use; the new one has the same name.
	copyFile(t, libraryOf(other), file)
	if err := model.Replace(file); err != nil {
		t.Fatal(err)
	}
	group.Wait()
	if found, _ := model.Margins(e.rows, e.n, 1); wrong > 0 || !same(found, changed, 0) {
		t.Fatal("wrong predictions: ", wrong)
	}
	maps, err := os.ReadFile("/proc/self/maps") // only Linux has it
	if err == nil && !strings.Contains(string(maps), file) {
		t.Fatal("the new library is not loaded")
	}
	if strings.Contains(string(maps), file+" (deleted)") {
		t.Fatal("the old library is still loaded")
	}
	model.Close()
	if maps, err = os.ReadFile("/proc/self/maps"); err == nil && strings.Contains(string(maps), file) {
		t.Fatal("the library is still loaded")
	}
}
