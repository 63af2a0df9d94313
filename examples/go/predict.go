// Predicts a batch through cgo.
package main

// #cgo CFLAGS: -I${SRCDIR}/..
// #cgo LDFLAGS: ${SRCDIR}/../libiris.a -lm -ldl -pthread
// #include "libiris.h"
import "C"

import (
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"runtime"
)

// predict returns the values of each row, and the numbers of classes.
func predict(rows []float32) ([]float32, []int64, error) {
	runtime.LockOSThread() // the text of an error is the thread's
	defer runtime.UnlockOSThread()
	n := len(rows) / int(C.iris_features())
	if n == 0 {
		return nil, nil, nil
	}
	margin := make([]float32, n*int(C.iris_outputs()))
	value := make([]float32, len(margin))
	label := make([]int64, n)
	at := (*C.float)(&rows[0])
	if C.iris_predict(at, C.int64_t(n), (*C.float)(&margin[0]), (*C.float)(&value[0]), -1) != 0 ||
		C.iris_predict_labels(at, C.int64_t(n), (*C.int64_t)(&label[0]), -1) != 0 {
		return nil, nil, errors.New(C.GoString(C.iris_error()))
	}
	return value, label, nil
}

func main() {
	var rows []float32
	for {
		var x float32
		if _, err := fmt.Fscan(os.Stdin, &x); err == io.EOF {
			break
		} else if err != nil {
			log.Fatal(err)
		}
		rows = append(rows, x)
	}
	values, labels, err := predict(rows)
	if err != nil {
		log.Fatal(err)
	}
	outputs := len(values) / len(labels)
	for i, label := range labels {
		for _, value := range values[i*outputs : (i+1)*outputs] {
			fmt.Print(value, " ")
		}
		fmt.Println(C.GoString(C.iris_class_name(C.int64_t(label))))
	}
}
