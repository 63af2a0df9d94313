package tvmforest

// The types of the model, which `tvm-forest export --to go` writes; Open compares them with those of
// the library.
type Row = float32
type Margin = float32
type Value = float32
