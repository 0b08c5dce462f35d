//! Access to the verbs of the `libibverbs.so.1` that the program uses.

use std::ffi::{CStr, OsString, c_char, c_int, c_void};
use std::mem::{size_of, transmute_copy};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::OnceLock;

use rdmacm::{DEFAULT_ANSWER_TIMEOUT, Provider};
use verbs_abi::{Gsi, Symbols, for_each_symbol};

/// The drop-in `libibverbs.so.1`. The library is usually loaded already, because programs linked to
/// librdmacm are linked to libibverbs, too. Otherwise the loader finds it on the search path of the
/// program.
struct VerbsLibrary(*mut c_void);

impl VerbsLibrary {
    /// Loads the library.
    ///
    /// # Errors
    /// Returns `EMFILE`, `ENFILE` or `ENOMEM` if the process lacks descriptors or memory to load the
    /// library, and `ENODEV` if loading fails for another reason.
    fn open() -> Result<Self, c_int> {
        // SAFETY: a string; the library's initialisers only set up its own state.
        let handle = unsafe { libc::dlopen(c"libibverbs.so.1".as_ptr(), libc::RTLD_NOW) };
        if !handle.is_null() {
            return Ok(Self(handle));
        }
        // The loader reports the reason only as text, so check whether any file can be opened.
        let opened = std::fs::File::open("/dev/null").map_err(|e| e.raw_os_error());
        Err(match opened {
            Err(Some(errno @ (libc::EMFILE | libc::ENFILE | libc::ENOMEM))) => errno,
            _ => libc::ENODEV,
        })
    }

    /// Returns the function of the library with the name `name`.
    ///
    /// # Safety
    /// `F` is the type of a pointer to the function.
    unsafe fn find_function<F>(&self, name: &CStr) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) }
        // SAFETY: the library is open, and is never closed.
        let found = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        // SAFETY: contract of this function; the sizes are the same.
        (!found.is_null()).then(|| unsafe { transmute_copy(&found) })
    }
}

macro_rules! load_symbols {
    ($( $(#[$meta:meta])* fn $name:ident($( $arg:ident: $type:ty ),*) $(-> $ret:ty)?; )*) => {
        fn load(library: &VerbsLibrary) -> Option<Symbols> {
            const fn c_name(name: &str) -> &CStr {
                match CStr::from_bytes_with_nul(name.as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a name without zeroes, and one behind it"),
                }
            }
            // SAFETY: each field has the type of libibverbs' function with that name.
            unsafe {
                Some(Symbols {
                    $( $name: library.find_function(const { c_name(concat!(stringify!($name), "\0")) })?, )*
                })
            }
        }
    };
}

for_each_symbol!(load_symbols);

/// Finds the verbs of the drop-in `libibverbs.so.1`, and the fabric's folder.
///
/// # Errors
/// Returns `ENODEV` if `libibverbs.so.1` is not the drop-in's, or the error of loading it.
pub(crate) fn find_provider() -> Result<Provider, c_int> {
    static SYMBOLS: OnceLock<Symbols> = OnceLock::new();
    let library = VerbsLibrary::open()?;
    let fabric_dir = fabric_dir(&library).ok_or_else(|| {
        eprintln!(
            "librdmacm (verbatim): the program's libibverbs.so.1 is not Verbatim's, and this librdmacm.so.1 \
             works with no other: start the program with `verbatim run`"
        );
        libc::ENODEV
    })?;
    let symbols = load(&library).ok_or(libc::ENODEV)?;
    Ok(Provider {
        verbs: SYMBOLS.get_or_init(|| symbols),
        fabric_dir,
        gsi: gsi_functions(&library),
        answer_timeout: DEFAULT_ANSWER_TIMEOUT,
    })
}

/// Returns the folder of the fabric; only the drop-in `libibverbs.so.1` knows this folder.
///
/// `verbatim_fabric_dir` writes the path without a terminating zero, and returns its length.
fn fabric_dir(library: &VerbsLibrary) -> Option<PathBuf> {
    type FabricDir = unsafe extern "C" fn(to: *mut c_char, room: usize) -> usize;
    // SAFETY: the type is that of the drop-in's function with that name.
    let name: FabricDir = unsafe { library.find_function(c"verbatim_fabric_dir") }?;
    let mut bytes = vec![0_u8; libc::PATH_MAX as usize];
    // SAFETY: the buffer has the length that is passed.
    let len = unsafe { name(bytes.as_mut_ptr().cast(), bytes.len()) };
    if len == 0 || len > bytes.len() {
        return None;
    }
    bytes.truncate(len);
    Some(PathBuf::from(OsString::from_vec(bytes)))
}

/// Returns the drop-in's functions that send management datagrams to other hosts.
fn gsi_functions(library: &VerbsLibrary) -> Option<&'static Gsi> {
    type Find = extern "C" fn() -> *const Gsi;
    // SAFETY: the type is that of the drop-in's function with that name, which returns NULL or a value that
    // is never freed.
    unsafe {
        let find: Find = library.find_function(c"verbatim_gsi")?;
        find().as_ref()
    }
}

/// Makes this library number handles in traces as the drop-in `libibverbs.so.1` does. Call the function
/// before the first trace line; later calls have no effect.
pub(crate) fn share_handle_numbers_with_libibverbs() {
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| {
        // SAFETY: the type is that of the drop-in's function with that name, which is never unloaded.
        unsafe {
            let number: Option<tap::trace::HandleNumberingFn> = VerbsLibrary::open()
                .ok()
                .and_then(|library| library.find_function(c"verbatim_trace_number"));
            if let Some(number) = number {
                tap::trace::install_numbering_function(number);
            }
        }
    });
}
