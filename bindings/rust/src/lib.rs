//! Predicts with a model that `tvm-forest export --to rust` has compiled.
//!
//! ```no_run
//! # fn main() -> Result<(), tvmforest::Error> {
//! # let rows = [0.0; 8];
//! let model = tvmforest::Model::open("libmodel.so")?;
//! let values = model.predict(&rows, 2, 1)?;
//! # Ok(()) }
//! ```
mod types;
pub use types::{Margin, Row, Value};

use std::any::type_name;
use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::{env, fmt, fs, mem, os::unix, process};

/// Why a library cannot be loaded, or a call fails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// The library is not there, or is not one of a model with these types and shapes.
    Library(String),
    /// The rows have another number of columns.
    Shape(String),
    /// What the library says of a call.
    Call(String),
}

impl fmt::Display for Error {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Error::Library(text) | Error::Shape(text) | Error::Call(text)) = self;
        to.write_str(text)
    }
}

impl std::error::Error for Error {}

/// A model, which any number of threads may use at once, and replace meanwhile.
///
/// Rows lie one behind the other; a missing value is NaN. `jobs` threads share out the rows of a
/// call, -1 for one on each core.
#[derive(Debug)]
pub struct Model {
    now: RwLock<Arc<Library>>,
}

impl Model {
    /// Load a library.
    pub fn open(path: impl AsRef<Path>) -> Result<Model, Error> {
        let library = Arc::new(Library::load(path.as_ref())?);
        Ok(Model { now: RwLock::new(library) })
    }

    /// Let calls that begin from now on use another library, with the same columns and results.
    /// Calls in flight finish with the old one, which is unloaded after the last.
    pub fn replace(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = path.as_ref();
        let next = Arc::new(Library::load(path)?);
        let mut now = self.now.write().unwrap();
        if next.shape != now.shape {
            let (path, next, old) = (path.display(), next.shape, now.shape);
            return Err(Error::Library(format!("{path}: {next:?}, and the model in use has {old:?}")));
        }
        let old = mem::replace(&mut *now, next);
        drop(now); // the lock, before a library may be unloaded
        drop(old);
        Ok(())
    }

    /// How many columns, results and classes there are.
    pub fn shape(&self) -> Shape {
        self.now().shape
    }

    /// The name of a column.
    pub fn feature_name(&self, k: usize) -> Option<String> {
        let now = self.now();
        now.name(now.feature_name, k)
    }

    /// The name of a class.
    pub fn class_name(&self, k: usize) -> Option<String> {
        let now = self.now();
        now.name(now.class_name, k)
    }

    /// Probabilities of a classifier, else what the model predicts: (n, outputs).
    pub fn predict(&self, rows: &[Row], n: usize, jobs: i32) -> Result<Vec<Value>, Error> {
        Ok(self.both(rows, n, jobs)?.1)
    }

    /// What the trees add up to: (n, outputs).
    pub fn margins(&self, rows: &[Row], n: usize, jobs: i32) -> Result<Vec<Margin>, Error> {
        Ok(self.both(rows, n, jobs)?.0)
    }

    /// Margins and values of one call.
    pub fn both(&self, rows: &[Row], n: usize, jobs: i32) -> Result<(Vec<Margin>, Vec<Value>), Error> {
        let now = self.now();
        now.check_shape(rows.len(), n)?;
        let size = n * now.shape.outputs;
        let (mut margins, mut values) = (vec![0.0; size], vec![0.0; size]);
        let (to, and) = (margins.as_mut_ptr(), values.as_mut_ptr());
        // SAFETY: rows and results have the sizes that the library was asked for.
        now.check(unsafe { (now.predict)(rows.as_ptr(), n as i64, to, and, jobs) })?;
        Ok((margins, values))
    }

    /// Numbers of the chosen classes: (n, labels).
    pub fn predict_labels(&self, rows: &[Row], n: usize, jobs: i32) -> Result<Vec<i64>, Error> {
        let now = self.now();
        now.check_shape(rows.len(), n)?;
        let mut found = vec![0; n * now.shape.labels];
        // SAFETY: as above.
        now.check(unsafe { (now.predict_labels)(rows.as_ptr(), n as i64, found.as_mut_ptr(), jobs) })?;
        Ok(found)
    }

    fn now(&self) -> Arc<Library> {
        self.now.read().unwrap().clone()
    }
}

/// How many columns a row has, and how many results there are for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    pub features: usize,
    pub outputs: usize,
    /// Labels of a row, 0 if the model has no classes.
    pub labels: usize,
    /// Classes that have names.
    pub classes: usize,
}

type Predict = unsafe extern "C" fn(*const Row, i64, *mut Margin, *mut Value, c_int) -> c_int;
type PredictLabels = unsafe extern "C" fn(*const Row, i64, *mut i64, c_int) -> c_int;
type Text = unsafe extern "C" fn() -> *const c_char;
type Name = unsafe extern "C" fn(i64) -> *const c_char;

#[derive(Debug)]
struct Library {
    handle: *mut c_void,
    shape: Shape,
    predict: Predict,
    predict_labels: PredictLabels,
    error: Text,
    feature_name: Name,
    class_name: Name,
}

// SAFETY: the handle is only closed, by the last owner, and the functions may be called by any thread.
unsafe impl Send for Library {}
unsafe impl Sync for Library {}

#[cfg_attr(target_os = "linux", link(name = "dl"))]
extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlclose(handle: *mut c_void) -> c_int;
    fn dlerror() -> *const c_char;
}

/// Closes a library that is not complete.
struct Handle(*mut c_void);

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: dlopen gave it.
        unsafe { dlclose(self.0) };
    }
}

impl Handle {
    fn find(&self, name: &str) -> Result<*mut c_void, Error> {
        let text = CString::new(format!("tvm_forest_{name}")).expect("no zero in it");
        // SAFETY: the handle is open.
        let at = unsafe { dlsym(self.0, text.as_ptr()) };
        let told = || Error::Library(format!("the library has no function tvm_forest_{name}"));
        if at.is_null() { Err(told()) } else { Ok(at) }
    }

    fn count(&self, name: &str) -> Result<usize, Error> {
        // SAFETY: the header declares these functions so.
        let function: unsafe extern "C" fn() -> i64 = unsafe { mem::transmute(self.find(name)?) };
        Ok(unsafe { function() } as usize)
    }
}

impl Library {
    fn load(path: &Path) -> Result<Library, Error> {
        let told = |why: String| Error::Library(format!("{}: {why}", path.display()));
        let handle = Handle(open_anew(path).map_err(told)?);
        // SAFETY: the header declares these functions so, for the types that are compared first.
        unsafe {
            let types: Text = mem::transmute(handle.find("types")?);
            let (given, wanted) = (text_at(types()), names_of_types());
            if given != wanted {
                let why = format!("types of rows, margins and values: {given}, and {wanted} in types.rs");
                return Err(told(why));
            }
            let check: unsafe extern "C" fn() -> c_int = mem::transmute(handle.find("check")?);
            let made = Library {
                shape: Shape {
                    features: handle.count("features")?,
                    outputs: handle.count("outputs")?,
                    labels: handle.count("labels")?,
                    classes: handle.count("classes")?,
                },
                predict: mem::transmute::<*mut c_void, Predict>(handle.find("predict")?),
                predict_labels: mem::transmute::<*mut c_void, PredictLabels>(handle.find("predict_labels")?),
                error: mem::transmute::<*mut c_void, Text>(handle.find("error")?),
                feature_name: mem::transmute::<*mut c_void, Name>(handle.find("feature_name")?),
                class_name: mem::transmute::<*mut c_void, Name>(handle.find("class_name")?),
                handle: handle.0,
            };
            mem::forget(handle); // which the library closes from now on
            made.check(check())?;
            Ok(made)
        }
    }

    fn check(&self, code: c_int) -> Result<(), Error> {
        // SAFETY: the text is the thread's own.
        if code == 0 { Ok(()) } else { Err(Error::Call(unsafe { text_at((self.error)()) })) }
    }

    fn check_shape(&self, size: usize, n: usize) -> Result<(), Error> {
        let width = self.shape.features;
        if n.checked_mul(width) == Some(size) {
            return Ok(());
        }
        let whole = n > 0 && size % n == 0;
        let columns = if whole { format!(", which have {} columns", size / n) } else { String::new() };
        Err(Error::Shape(format!("rows: {size} numbers for {n} rows{columns}; the model has {width} columns")))
    }

    fn name(&self, function: Name, k: usize) -> Option<String> {
        // SAFETY: the texts are as long-lived as the library.
        let at = unsafe { function(k as i64) };
        if at.is_null() { None } else { Some(unsafe { text_at(at) }) }
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        // SAFETY: nobody calls a function of it any more.
        unsafe { dlclose(self.handle) };
    }
}

unsafe fn text_at(at: *const c_char) -> String {
    if at.is_null() { String::new() } else { CStr::from_ptr(at).to_string_lossy().into_owned() }
}

fn names_of_types() -> String {
    let names = [type_name::<Row>(), type_name::<Margin>(), type_name::<Value>()];
    names.map(|name| name.replace('f', "float")).join(" ")
}

/// Load by a name that nobody has used: by a known one the loader gives what it has loaded before,
/// even if there is another file by now.
fn open_anew(path: &Path) -> Result<*mut c_void, String> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let link: PathBuf = env::temp_dir().join(format!("tvmforest_{}_{number}", process::id()));
    let file = fs::canonicalize(path).map_err(|error| error.to_string())?;
    unix::fs::symlink(file, &link).map_err(|error| error.to_string())?;
    let name = CString::new(link.to_string_lossy().as_bytes()).map_err(|error| error.to_string())?;
    let now = 2; // RTLD_NOW; local is the default
    // SAFETY: the text ends with a zero; dlerror is the thread's own.
    let made = unsafe { dlopen(name.as_ptr(), now) };
    let why = if made.is_null() { unsafe { text_at(dlerror()) } } else { String::new() };
    fs::remove_file(link).ok();
    if made.is_null() { Err(why) } else { Ok(made) }
}
