//! Fault injection: `TIDEGATE_SOFTGPU_FAULTS="cuMemCreate@3=OUT_OF_MEMORY,cuInit@1+=UNKNOWN"`.
//!
//! The n-th call of a function in this process (`@n`), or every call from the n-th on (`@n+`),
//! returns the error instead of doing anything. A function without a rule pays one atomic load.

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
    onwards: bool,
    code: CUresult,
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
        rules.iter().find(|rule| rule.strikes(call)).map(|rule| rule.code)
    }
}

impl Rule {
    fn strikes(&self, call: u64) -> bool {
        call == self.nth || (self.onwards && call > self.nth)
    }
}

fn rules_of(function: &str) -> Box<[Rule]> {
    static ALL: OnceLock<Vec<Rule>> = OnceLock::new();
    let all = ALL.get_or_init(|| {
        parse(&std::env::var("TIDEGATE_SOFTGPU_FAULTS").unwrap_or_default()).unwrap_or_else(|item| {
            node::say(&format!("TIDEGATE_SOFTGPU_FAULTS: `{item}` is not FUNCTION@N[+]=ERROR"));
            Vec::new()
        })
    });
    all.iter().filter(|rule| rule.function == function).cloned().collect()
}

/// The rules of a list, or the first item that is none.
fn parse(list: &str) -> Result<Vec<Rule>, String> {
    let items = list.split(',').map(str::trim).filter(|item| !item.is_empty());
    items.map(|item| rule(item).ok_or_else(|| item.to_owned())).collect()
}

fn rule(item: &str) -> Option<Rule> {
    let (call, code) = item.split_once('=')?;
    let (function, count) = call.split_once('@')?;
    let onwards = count.ends_with('+');
    let nth = count.trim_end_matches('+').parse().ok().filter(|nth| *nth > 0)?;
    Some(Rule { function: function.to_owned(), nth, onwards, code: error::by_name(code)? })
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
    }

    #[test]
    fn an_item_that_is_no_rule_is_named() {
        assert_eq!(parse("cuInit@0=UNKNOWN"), Err("cuInit@0=UNKNOWN".into()));
        assert_eq!(parse("cuInit@1=NO_SUCH"), Err("cuInit@1=NO_SUCH".into()));
    }
}
