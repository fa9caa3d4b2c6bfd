//! Fault injection: `TIDEGATE_SOFTGPU_FAULTS="cuMemCreate@3=OUT_OF_MEMORY,cuInit@1+=UNKNOWN"`.
//!
//! The n-th call of a function in this process (`@n`), every call from the n-th on (`@n+`), or every
//! n-th call (`@%n`) returns the error instead of doing anything. A function without a rule pays one
//! atomic load. Each fault adds a line, the function's name, to the file that
//! `TIDEGATE_SOFTGPU_FAULTS_LOG` names: who injects them sees that they struck.

use std::fs::OpenOptions;
use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::driver::sys::CUresult;

use crate::{error, node};

/// Counts the calls of one function against the rules for it.
pub struct Counter {
    calls: AtomicU64,
    rules: OnceLock<Box<[Rule]>>,
}

/// One item of the list in the environment.
#[derive(Clone, Debug, PartialEq)]
struct Rule {
    function: String,
    nth: u64,
    calls: Calls,
    code: CUresult,
}

/// Which calls a rule is for, beside the n-th.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Calls {
    One,
    Onwards,
    Every,
}

impl Counter {
    /// A counter at zero; its rules are looked up at the first call.
    pub const fn new() -> Counter {
        Counter { calls: AtomicU64::new(0), rules: OnceLock::new() }
    }

    /// The error that is due at this call of `function`.
    pub fn due(&self, function: &str) -> Option<CUresult> {
        let rules = self.rules.get_or_init(|| rules_of(function));
        if rules.is_empty() {
            return None;
        }
        let call = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        let due = rules.iter().find(|rule| rule.strikes(call)).map(|rule| rule.code);
        due.inspect(|_| log(function))
    }
}

impl Rule {
    fn strikes(&self, call: u64) -> bool {
        match self.calls {
            Calls::One => call == self.nth,
            Calls::Onwards => call >= self.nth,
            Calls::Every => call.is_multiple_of(self.nth),
        }
    }
}

fn rules_of(function: &str) -> Box<[Rule]> {
    static ALL: OnceLock<Vec<Rule>> = OnceLock::new();
    let all = ALL.get_or_init(|| {
        parse(&std::env::var("TIDEGATE_SOFTGPU_FAULTS").unwrap_or_default()).unwrap_or_else(|item| {
            node::say(&format!("TIDEGATE_SOFTGPU_FAULTS: `{item}` is not FUNCTION@N=ERROR, @N+ or @%N"));
            Vec::new()
        })
    });
    all.iter().filter(|rule| rule.function == function).cloned().collect()
}

fn log(function: &str) {
    let Some(path) = std::env::var_os("TIDEGATE_SOFTGPU_FAULTS_LOG") else { return };
    let file = OpenOptions::new().create(true).append(true).open(&path);
    // One write: lines of several processes do not mix.
    if let Err(error) = file.and_then(|mut file| file.write_all(format!("{function}\n").as_bytes())) {
        node::say(&format!("TIDEGATE_SOFTGPU_FAULTS_LOG: {}: {error}", path.display()));
    }
}

/// The rules of a list, or the first item that is none.
fn parse(list: &str) -> Result<Vec<Rule>, String> {
    let items = list.split(',').map(str::trim).filter(|item| !item.is_empty());
    items.map(|item| rule(item).ok_or_else(|| item.to_owned())).collect()
}

fn rule(item: &str) -> Option<Rule> {
    let (call, code) = item.split_once('=')?;
    let (function, count) = call.split_once('@')?;
    let (count, calls) = match (count.strip_prefix('%'), count.strip_suffix('+')) {
        (Some(count), _) => (count, Calls::Every),
        (_, Some(count)) => (count, Calls::Onwards),
        _ => (count, Calls::One),
    };
    let nth = count.parse().ok().filter(|nth| *nth > 0)?;
    Some(Rule { function: function.to_owned(), nth, calls, code: error::by_name(code)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_names_function_call_and_error() {
        let rules = parse("cuMemCreate@3=OUT_OF_MEMORY, cuInit@1+=CUDA_ERROR_UNKNOWN").unwrap();
        assert!(rules[0].strikes(3) && !rules[0].strikes(4));
        assert_eq!(rules[0].code, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        assert!(rules[1].strikes(1) && rules[1].strikes(9));
        let every = &parse("cuMemMap@%4=UNKNOWN").unwrap()[0];
        assert!(every.strikes(4) && every.strikes(8) && !every.strikes(5) && !every.strikes(1));
    }

    #[test]
    fn an_item_that_is_no_rule_is_named() {
        assert_eq!(parse("cuInit@0=UNKNOWN"), Err("cuInit@0=UNKNOWN".into()));
        assert_eq!(parse("cuInit@1=NO_SUCH"), Err("cuInit@1=NO_SUCH".into()));
    }
}
