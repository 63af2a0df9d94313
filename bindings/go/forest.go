// Package tvmforest predicts with a model that `tvm-forest export --to go` has compiled.
//
//	model, err := tvmforest.Open("libmodel.so")
//	values, err := model.Predict(rows, n, 1)
//	defer model.Close()
package tvmforest

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

static int predict(void *f, const void *rows, int64_t n, void *margin, void *value, int jobs) {
  return ((int (*)(const void *, int64_t, void *, void *, int))f)(rows, n, margin, value, jobs);
}
static int labels(void *f, const void *rows, int64_t n, void *label, int jobs) {
  return ((int (*)(const void *, int64_t, void *, int))f)(rows, n, label, jobs);
}
static int64_t number(void *f) { return ((int64_t (*)(void))f)(); }
static int check(void *f) { return ((int (*)(void))f)(); }
static const char *text(void *f) { return ((const char *(*)(void))f)(); }
static const char *name(void *f, int64_t k) { return ((const char *(*)(int64_t))f)(k); }
*/
import "C"

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"unsafe"
)

// ErrClosed is what a model returns once it was closed.
var ErrClosed = errors.New("the model is closed")

var functions = []string{"error", "check", "types", "features", "outputs", "labels", "classes",
	"predict", "predict_labels", "feature_name", "class_name"}

// library is what was loaded; users counts the model that holds it and the calls in flight.
type library struct {
	handle                             unsafe.Pointer
	at                                 map[string]unsafe.Pointer
	features, outputs, labels, classes int
	users                              int
}

// Model predicts. Any number of goroutines may use it at once, and replace what it holds meanwhile.
type Model struct {
	mutex sync.Mutex
	now   *library
}

// Open loads a library.
func Open(path string) (*Model, error) {
	made, err := load(path)
	if err != nil {
		return nil, err
	}
	return &Model{now: made}, nil
}

// Replace lets calls that begin from now on use another library, with the same columns and results.
// Calls in flight finish with the old one, which is unloaded after the last.
func (m *Model) Replace(path string) error {
	next, err := load(path)
	if err != nil {
		return err
	}
	m.mutex.Lock()
	old := m.now
	if old == nil {
		err = ErrClosed
	} else if next.features != old.features || next.outputs != old.outputs ||
		next.labels != old.labels || next.classes != old.classes {
		err = fmt.Errorf("%s: %s, and the model in use has %s", path, next.shape(), old.shape())
	} else {
		m.now, next = next, old
	}
	m.mutex.Unlock()
	m.release(next)
	return err
}

// Close unloads the library after the calls that are in flight.
func (m *Model) Close() {
	m.mutex.Lock()
	old := m.now
	m.now = nil
	m.mutex.Unlock()
	if old != nil {
		m.release(old)
	}
}

// Features returns the number of columns of a row; 0 if the model is closed.
func (m *Model) Features() int { return m.count(func(l *library) int { return l.features }) }

// Outputs returns the number of margins and values of a row.
func (m *Model) Outputs() int { return m.count(func(l *library) int { return l.outputs }) }

// Labels returns the number of labels of a row, 0 if the model has no classes.
func (m *Model) Labels() int { return m.count(func(l *library) int { return l.labels }) }

// Classes returns the number of classes that have names.
func (m *Model) Classes() int { return m.count(func(l *library) int { return l.classes }) }

// FeatureName returns the name of a column, "" if there is none.
func (m *Model) FeatureName(k int) string { return m.name("feature_name", k) }

// ClassName returns the name of a class, "" if there is none.
func (m *Model) ClassName(k int) string { return m.name("class_name", k) }

// Predict returns probabilities of a classifier, else what the model predicts, (n, outputs).
//
// Rows lie one behind the other, NaN for a missing value; jobs threads share them out, -1 for one on
// each core.
func (m *Model) Predict(rows []Row, n, jobs int) ([]Value, error) {
	_, values, err := m.Both(rows, n, jobs)
	return values, err
}

// Margins returns what the trees add up to, (n, outputs).
func (m *Model) Margins(rows []Row, n, jobs int) ([]Margin, error) {
	margins, _, err := m.Both(rows, n, jobs)
	return margins, err
}

// Both returns the margins and the values of one call.
func (m *Model) Both(rows []Row, n, jobs int) ([]Margin, []Value, error) {
	now, err := m.take(len(rows), n)
	if err != nil {
		return nil, nil, err
	}
	defer m.release(now)
	margins, values := make([]Margin, n*now.outputs), make([]Value, n*now.outputs)
	if n == 0 {
		return margins, values, nil
	}
	err = now.run(func() C.int {
		return C.predict(now.at["predict"], unsafe.Pointer(&rows[0]), C.int64_t(n),
			unsafe.Pointer(&margins[0]), unsafe.Pointer(&values[0]), C.int(jobs))
	})
	return margins, values, err
}

// PredictLabels returns the numbers of the chosen classes, (n, labels).
func (m *Model) PredictLabels(rows []Row, n, jobs int) ([]int64, error) {
	now, err := m.take(len(rows), n)
	if err != nil {
		return nil, err
	}
	defer m.release(now)
	if now.labels == 0 {
		return nil, errors.New("the model has no classes")
	}
	found := make([]int64, n*now.labels)
	if n == 0 {
		return found, nil
	}
	return found, now.run(func() C.int {
		return C.labels(now.at["predict_labels"], unsafe.Pointer(&rows[0]), C.int64_t(n),
			unsafe.Pointer(&found[0]), C.int(jobs))
	})
}

// load opens a library by a name that nobody has used: by a known one the loader gives what it has
// loaded before, even if there is another file by now.
func load(path string) (*library, error) {
	runtime.LockOSThread() // the text of an error is the thread's
	defer runtime.UnlockOSThread()
	file, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	folder, err := os.MkdirTemp("", "tvmforest")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(folder)
	link := filepath.Join(folder, "model")
	if err := os.Symlink(file, link); err != nil {
		return nil, err
	}
	name := C.CString(link)
	defer C.free(unsafe.Pointer(name))
	made := &library{handle: C.dlopen(name, C.RTLD_NOW|C.RTLD_LOCAL), at: map[string]unsafe.Pointer{}, users: 1}
	if made.handle == nil {
		return nil, fmt.Errorf("%s: %s", path, C.GoString(C.dlerror()))
	}
	if err := made.look(); err != nil {
		C.dlclose(made.handle)
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return made, nil
}

// look finds all functions, and refuses a library of other types or for another processor.
func (l *library) look() error {
	for _, function := range functions {
		name := C.CString("tvm_forest_" + function)
		l.at[function] = C.dlsym(l.handle, name)
		C.free(unsafe.Pointer(name))
		if l.at[function] == nil {
			return fmt.Errorf("the library has no function tvm_forest_%s", function)
		}
	}
	wanted := fmt.Sprintf("%T %T %T", Row(0), Margin(0), Value(0))
	if types := C.GoString(C.text(l.at["types"])); types != wanted {
		return fmt.Errorf("types of rows, margins and values: %q, and %q in types.go", types, wanted)
	}
	for name, to := range map[string]*int{"features": &l.features, "outputs": &l.outputs,
		"labels": &l.labels, "classes": &l.classes} {
		*to = int(C.number(l.at[name]))
	}
	return l.run(func() C.int { return C.check(l.at["check"]) })
}

func (l *library) run(call func() C.int) error {
	runtime.LockOSThread() // the text of an error is the thread's
	defer runtime.UnlockOSThread()
	if call() != 0 {
		return errors.New(C.GoString(C.text(l.at["error"])))
	}
	return nil
}

func (l *library) shape() string {
	return fmt.Sprintf("%d columns, %d outputs, %d labels, %d classes", l.features, l.outputs, l.labels, l.classes)
}

// take returns the library for a call, which has to be released.
func (m *Model) take(size, n int) (*library, error) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	if m.now == nil {
		return nil, ErrClosed
	}
	if n < 0 || size != n*m.now.features {
		shape := ""
		if n > 0 && size%n == 0 {
			shape = fmt.Sprintf(", which have %d columns", size/n)
		}
		return nil, fmt.Errorf("rows: %d numbers for %d rows%s; the model has %d columns", size, n, shape, m.now.features)
	}
	m.now.users++
	return m.now, nil
}

func (m *Model) release(l *library) {
	m.mutex.Lock()
	l.users--
	last := l.users == 0
	m.mutex.Unlock()
	if last {
		C.dlclose(l.handle)
	}
}

func (m *Model) count(of func(*library) int) int {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	if m.now == nil {
		return 0
	}
	return of(m.now)
}

func (m *Model) name(function string, k int) string {
	found := ""
	m.count(func(l *library) int {
		if at := C.name(l.at[function], C.int64_t(k)); at != nil {
			found = C.GoString(at)
		}
		return 0
	})
	return found
}
