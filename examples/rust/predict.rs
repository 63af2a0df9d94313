//! Predicts a batch; the functions are those of `libiris.h`.
use std::ffi::{c_char, c_int, CStr};
use std::io::{self, Read};
use std::ptr;

extern "C" {
    fn iris_error() -> *const c_char;
    fn iris_features() -> i64;
    fn iris_outputs() -> i64;
    fn iris_predict(rows: *const f32, n: i64, margin: *mut f32, value: *mut f32, jobs: c_int) -> c_int;
    fn iris_predict_labels(rows: *const f32, n: i64, label: *mut i64, jobs: c_int) -> c_int;
    fn iris_class_name(number: i64) -> *const c_char;
}

/// The text of a C string.
unsafe fn text(at: *const c_char) -> String {
    CStr::from_ptr(at).to_string_lossy().into_owned()
}

/// Values of each row, and names of classes.
fn predict(rows: &[f32]) -> Result<(Vec<f32>, Vec<String>), String> {
    unsafe {
        let (features, outputs) = (iris_features() as usize, iris_outputs() as usize);
        let n = rows.len() / features;
        let (mut margin, mut value) = (vec![0.0; n * outputs], vec![0.0; n * outputs]);
        let mut label = vec![0; n];
        let jobs = -1;
        if iris_predict(rows.as_ptr(), n as i64, margin.as_mut_ptr(), value.as_mut_ptr(), jobs) != 0
            || iris_predict_labels(rows.as_ptr(), n as i64, label.as_mut_ptr(), jobs) != 0
        {
            return Err(text(iris_error()));
        }
        Ok((value, label.iter().map(|&k| text(iris_class_name(k))).collect()))
    }
}

fn main() -> Result<(), String> {
    // What is wrong is told by a code and a text, also on a processor that lacks instructions.
    assert_eq!(unsafe { iris_predict(ptr::null(), 1, ptr::null_mut(), ptr::null_mut(), 1) }, -1);
    let mut given = String::new();
    io::stdin().read_to_string(&mut given).map_err(|error| error.to_string())?;
    let rows: Vec<f32> = given.split_whitespace().map(|word| word.parse().unwrap()).collect();
    let (values, names) = predict(&rows)?;
    for (name, value) in names.iter().zip(values.chunks(values.len() / names.len())) {
        let shown: Vec<String> = value.iter().map(f32::to_string).collect();
        println!("{} {}", shown.join(" "), name);
    }
    Ok(())
}
