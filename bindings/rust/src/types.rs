// The types of the model, which `tvm-forest export --to rust` writes; `Model::open` compares them with
// those of the library.
pub type Row = f32;
pub type Margin = f32;
pub type Value = f32;
