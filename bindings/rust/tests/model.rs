//! Compares a model with what Python predicts, which expected.txt holds as bits.
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{env, fs, process, thread};
use tvmforest::{Error, Margin, Model, Row, Value};

struct Expected {
    head: Vec<usize>, // features, outputs, labels, rows, units in the last place
    rows: Vec<Row>,
    margins: Vec<Margin>,
    values: Vec<Value>,
    classes: Vec<i64>,
}

trait FromBits {
    fn from_text(word: &str) -> Self;
}
impl FromBits for f32 {
    fn from_text(word: &str) -> f32 {
        f32::from_bits(u32::from_str_radix(word, 16).unwrap())
    }
}
impl FromBits for f64 {
    fn from_text(word: &str) -> f64 {
        f64::from_bits(u64::from_str_radix(word, 16).unwrap())
    }
}

fn read(folder: &Path) -> Expected {
    let text = fs::read_to_string(folder.join("expected.txt")).unwrap();
    let mut lines = text.lines();
    let head: Vec<usize> = lines.next().unwrap().split(' ').map(|word| word.parse().unwrap()).collect();
    let mut e = Expected { head, rows: vec![], margins: vec![], values: vec![], classes: vec![] };
    for line in lines {
        let mut words = line.split(' ');
        e.rows.extend(words.by_ref().take(e.head[0]).map(Row::from_text));
        e.margins.extend(words.by_ref().take(e.head[1]).map(Margin::from_text));
        e.values.extend(words.by_ref().take(e.head[1]).map(Value::from_text));
        e.classes.extend(words.map(|word| word.parse::<i64>().unwrap()));
    }
    e
}

fn same<T: Copy + Into<f64>>(a: &[T], b: &[T], ulps: usize) -> bool {
    a.len() == b.len()
        && a.iter().zip(b).all(|(&x, &y)| {
            let (x, y): (f64, f64) = (x.into(), y.into());
            let near = (x - y).abs() <= ulps as f64 * y.abs() * 2.3e-16;
            x.to_bits() == y.to_bits() || (x.is_nan() && y.is_nan()) || (ulps > 0 && near)
        })
}

fn library_of(folder: &Path) -> PathBuf {
    let found = folder.join("libmodel.dylib");
    if found.exists() { found } else { folder.join("libmodel.so") }
}

fn here() -> PathBuf {
    env!("CARGO_MANIFEST_DIR").into()
}

#[test]
fn it_predicts_the_bits_of_python() {
    let (model, e) = (Model::open(library_of(&here())).unwrap(), read(&here()));
    for jobs in [1, -1] {
        let (margins, values) = model.both(&e.rows, e.head[3], jobs).unwrap();
        assert!(same(&margins, &e.margins, 0) && same(&values, &e.values, e.head[4]));
    }
    let labels = model.predict_labels(&e.rows, e.head[3], 1);
    match e.head[2] {
        0 => assert_eq!(labels, Err(Error::Call("the model has no classes".into()))),
        _ => assert_eq!(labels.unwrap(), e.classes),
    }
}

#[test]
fn batches_have_any_size() {
    let (model, e) = (Model::open(library_of(&here())).unwrap(), read(&here()));
    for n in [0, 1, 7, e.head[3]] {
        let margins = model.margins(&e.rows[..n * e.head[0]], n, 1).unwrap();
        assert!(same(&margins, &e.margins[..n * e.head[1]], 0), "{n} rows");
    }
}

#[test]
fn errors_name_what_is_wrong() {
    let (model, e) = (Model::open(library_of(&here())).unwrap(), read(&here()));
    let (features, n) = (e.head[0], e.head[3]);
    let Err(Error::Shape(text)) = model.predict(&e.rows[..n * (features - 1)], n, 1) else { panic!() };
    assert!(text.ends_with(&format!("which have {} columns; the model has {features} columns", features - 1)));
    let wrong = Error::Call("n_jobs is neither positive nor -1".into());
    assert_eq!(model.predict(&e.rows, n, 0), Err(wrong));
    let Err(Error::Library(text)) = Model::open("no such library.so") else { panic!() };
    assert!(text.starts_with("no such library.so: "), "{text}");
}

/// TVM_FOREST_OTHER may name the folder of another model with the same columns and results.
#[test]
fn a_model_is_replaced_while_others_predict() {
    let e = read(&here());
    let n = e.head[3];
    let other: PathBuf = env::var_os("TVM_FOREST_OTHER").map_or(here(), PathBuf::from);
    let folder = fs::canonicalize(env::temp_dir()).unwrap().join(format!("tvmforest_test_{}", process::id()));
    fs::create_dir_all(&folder).unwrap();
    let (file, new) = (folder.join("turned.so"), folder.join("new"));
    fs::copy(library_of(&here()), &file).unwrap();
    let model = Model::open(&file).unwrap();
    let changed = Model::open(library_of(&other)).unwrap().margins(&e.rows, n, 1).unwrap();
    let (calls, wrong) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..200 {
                    let found = model.margins(&e.rows, n, 1).unwrap();
                    let is_wrong = !same(&found, &e.margins, 0) && !same(&found, &changed, 0);
                    wrong.fetch_add(is_wrong.into(), Ordering::Relaxed);
                    calls.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        while calls.load(Ordering::Relaxed) < 100 {
            thread::yield_now();
        }
        // The file is replaced while its library is in use; the new one has the same name.
        fs::copy(library_of(&other), &new).unwrap();
        fs::rename(&new, &file).unwrap();
        model.replace(&file).unwrap();
    });
    assert_eq!(wrong.into_inner(), 0, "wrong predictions");
    assert!(same(&model.margins(&e.rows, n, 1).unwrap(), &changed, 0));
    let maps = || fs::read_to_string("/proc/self/maps").unwrap_or_default(); // only Linux has it
    let name = file.to_str().unwrap();
    assert!(maps().is_empty() || maps().contains(name), "the new library is loaded");
    assert!(!maps().contains(&format!("{name} (deleted)")), "the old library is unloaded");
    drop(model);
    assert!(!maps().contains(name), "the library is unloaded");
    fs::remove_dir_all(folder).unwrap();
}
