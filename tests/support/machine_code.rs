//! Reading x86-64 machine code, as far as the gate's test needs it: `objdump`'s lines, and the
//! paths through a routine.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::path::Path;
use std::process::Command;

/// The disassembly of a library.
pub fn disassemble(library: &Path) -> String {
    let mut objdump = Command::new("objdump");
    objdump.args(["--disassemble", "--no-show-raw-insn", "--disassembler-options=intel"]);
    let output = objdump.arg(library).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// One instruction: `inc QWORD PTR [rbx]`.
#[derive(Clone)]
pub struct Instruction {
    address: u64,
    /// With its prefixes, as in `lock inc`.
    name: String,
    operands: String,
}

/// The instructions of one function, in order.
pub struct Routine(Vec<Instruction>);

impl Routine {
    /// The function `name` of a disassembly.
    pub fn parse(disassembly: &str, name: &str) -> Self {
        let head = format!(" <{name}>:\n");
        let (_, body) = disassembly.split_once(&head).unwrap_or_else(|| panic!("{name} is not exported"));
        let lines = body.lines().take_while(|line| !line.is_empty());
        Self(lines.map(Instruction::parse).collect())
    }

    /// The instructions that lie on a way from the entry to a return without a direct call.
    pub fn open_path(&self) -> Vec<Instruction> {
        let next = self.successors();
        let entry = self.0[0].address;
        let forth = reachable([entry], |at| next.get(&at).cloned().unwrap_or_default());
        let returns = self.0.iter().filter(|i| i.is_end()).map(|i| i.address);
        let before = |at| next.iter().filter(|(_, to)| to.contains(&at)).map(|(from, _)| *from).collect();
        let back = reachable(returns, before);
        self.0.iter().filter(|i| forth.contains(&i.address) && back.contains(&i.address)).cloned().collect()
    }

    /// Where the program goes on behind each instruction; a direct call leads nowhere.
    fn successors(&self) -> HashMap<u64, Vec<u64>> {
        let following = self.0.iter().skip(1).map(|i| Some(i.address)).chain([None]);
        let of = |(i, following): (&Instruction, Option<u64>)| {
            let ends = i.is_end() || i.name == "jmp" || i.is_direct_call() || i.is_trap();
            let jump = i.target().filter(|_| i.name.starts_with('j'));
            (i.address, following.filter(|_| !ends).into_iter().chain(jump).collect())
        };
        self.0.iter().zip(following).map(of).collect()
    }
}

fn reachable(from: impl IntoIterator<Item = u64>, next: impl Fn(u64) -> Vec<u64>) -> HashSet<u64> {
    let mut open: Vec<u64> = from.into_iter().collect();
    let mut found = HashSet::new();
    while let Some(at) = open.pop() {
        if found.insert(at) {
            open.extend(next(at));
        }
    }
    found
}

/// The writes that go neither to the stack nor, through a pointer that was read from the thread's
/// own storage (`fs:`) or a copy of it, to what belongs to the thread.
pub fn shared_writes(path: &[Instruction]) -> Vec<&Instruction> {
    let mut own = BTreeSet::from(["rsp"]);
    let mut shared = Vec::new();
    for instruction in path {
        if instruction.written_memory().is_some_and(|base| !own.contains(base)) {
            shared.push(instruction);
        }
        let Some(register) = instruction.written_register() else { continue };
        if instruction.reads_pointer_of(&own) {
            own.insert(register);
        } else {
            own.remove(register);
        }
    }
    shared
}

impl Instruction {
    /// A line such as `41950: push rbp`, with a tab behind the colon, perhaps with a comment.
    fn parse(line: &str) -> Self {
        let (address, text) = line.split_once(':').unwrap_or_else(|| panic!("no instruction: {line:?}"));
        let text = text.split('#').next().unwrap_or_default().trim();
        let (prefix, text) = match text.split_once(' ') {
            Some((prefix @ ("lock" | "rep" | "repz" | "repnz" | "notrack" | "bnd"), rest)) => {
                (prefix, rest.trim())
            }
            _ => ("", text),
        };
        let (name, operands) = text.split_once(' ').unwrap_or((text, ""));
        Self {
            address: u64::from_str_radix(address.trim(), 16).unwrap(),
            name: format!("{prefix} {name}").trim().into(),
            operands: operands.trim().into(),
        }
    }

    pub fn is_call(&self) -> bool {
        self.name.ends_with("call") || self.name.ends_with("jmp") && self.target().is_none()
    }

    fn is_direct_call(&self) -> bool {
        self.name.ends_with("call") && self.target().is_some()
    }

    /// The routine's end: it returns, or goes on in the driver's function for good.
    fn is_end(&self) -> bool {
        self.name.ends_with("ret") || self.name.ends_with("jmp") && self.target().is_none()
    }

    fn is_trap(&self) -> bool {
        matches!(&self.name[..], "int3" | "ud2" | "hlt")
    }

    /// Where a direct jump or call leads: `41a0f <cuLaunchKernel+0xbf>`.
    fn target(&self) -> Option<u64> {
        let (address, _) = self.operands.split_once(" <")?;
        u64::from_str_radix(address, 16).ok()
    }

    /// Whether it locks a line, orders memory, or enters the kernel.
    pub fn is_costly(&self) -> bool {
        let fence = self.name.ends_with("fence") || self.name == "cpuid";
        let kernel = matches!(&self.name[..], "syscall" | "sysenter" | "int");
        let exchange = self.name == "xchg" && self.operands.contains('[');
        self.name.starts_with("lock") || exchange || fence || kernel
    }

    fn first_operand(&self) -> Option<&str> {
        let only_read = ["cmp", "test", "call", "jmp", "push", "nop"];
        let written = !only_read.iter().any(|name| self.name.ends_with(name));
        self.operands.split(',').next().filter(|_| written)
    }

    /// The base register of the memory that it writes to; all of the address where that is
    /// anything but a register and a number.
    fn written_memory(&self) -> Option<&str> {
        let (segment, address) = self.first_operand()?.split_once('[')?;
        let address = address.strip_suffix(']')?;
        let base = address
            .split_once(['+', '-'])
            .map_or(address, |(base, rest)| if rest.starts_with("0x") { base } else { address });
        Some(if segment.ends_with("PTR ") { base } else { segment })
    }

    /// The register that it writes to, unless that is the stack's.
    fn written_register(&self) -> Option<&str> {
        self.first_operand()
            .filter(|operand| !operand.is_empty() && !operand.contains('[') && *operand != "rsp")
    }

    fn reads_pointer_of(&self, own: &BTreeSet<&str>) -> bool {
        let from = self.operands.split_once(',').map(|(_, from)| from);
        self.name == "mov"
            && from.is_some_and(|from| from.starts_with("QWORD PTR fs:[") || own.contains(from))
    }
}

impl fmt::Debug for Instruction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}: {} {}", self.address, self.name, self.operands)
    }
}
