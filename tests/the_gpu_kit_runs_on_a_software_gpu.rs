//! The GPU kit (`tests/gpu`) is ready when a GPU is: its programs compile, end and answer in the agreed
//! form, and its report is made. What they answer here says nothing about hardware.

mod support;
#[path = "support/torch.rs"]
mod torch;

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use support::patience::{PATIENCE, output_within};
use tidegate_manager::artifacts;

fn kit() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gpu")
}

/// The report is made by Python, which the machines with GPUs have; here it may be missing.
fn has_python() -> bool {
    let found = Command::new("python3").arg("--version").stdout(Stdio::null()).status();
    let found = found.is_ok_and(|status| status.success());
    if !found {
        println!("python3 is not there: the GPU kit is not tried");
    }
    found
}

/// The names of the grounds' programs.
fn grounds() -> Vec<String> {
    let entries = std::fs::read_dir(kit().join("grounds")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let programs = names.filter(|name| name.starts_with(|first: char| first.is_ascii_digit()));
    let mut names: Vec<_> = programs.filter_map(|name| name.strip_suffix(".c").map(str::to_owned)).collect();
    names.sort();
    names
}

fn report(out: &Path) -> (Value, String) {
    let json = std::fs::read(out.join("report.json")).unwrap();
    (serde_json::from_slice(&json).unwrap(), std::fs::read_to_string(out.join("report.md")).unwrap())
}

/// Runs a section of the kit, in which nothing fails. Its report.
fn run(section: &str, options: &[(&str, &str)]) -> (Value, String) {
    let out = tempfile::tempdir().unwrap();
    let mut command = Command::new("bash");
    command.arg(kit().join("run.sh")).args(["--software", section]).env("OUT", out.path());
    command.env("KIT_BIN", artifacts::software_driver().unwrap().parent().unwrap());
    // Little memory and time; but a slow machine may take longer than a GPU's.
    command
        .env("GROUND_QUICK", "1")
        .env("KIT_PATIENCE", "10")
        .envs(options.iter().copied())
        .stdin(Stdio::null());
    let output = output_within(10 * PATIENCE, command);
    assert!(output.status.success(), "{output:?}");
    let (report, text) = report(out.path());
    assert_eq!(report["failed"], Value::Array(Vec::new()), "{text}");
    (report, text)
}

#[test]
fn every_ground_ends_and_answers_and_a_report_is_made() {
    if !has_python() {
        return;
    }
    let (report, text) = run("grounds", &[]);
    let runs = report["runs"].as_array().unwrap();
    let asked = runs.iter().filter(|run| run["section"] == "grounds");
    let mut names: Vec<_> = asked.map(|run| run["name"].as_str().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names, grounds());
    for run in runs {
        let answers = run["answers"].as_array().unwrap();
        assert!(!answers.is_empty() && answers.iter().all(|answer| answer["answer"] != "error"), "{run:#}");
    }
    assert_eq!(report["ran_on"], "software GPU");
    assert!(text.contains("It says nothing about any hardware."), "{text}");
}

#[test]
fn what_failed_comes_first_in_the_report_with_its_last_words() {
    if !has_python() {
        return;
    }
    let out = tempfile::tempdir().unwrap();
    let runs = out.path().join("runs");
    std::fs::create_dir(&runs).unwrap();
    let write = |name: &str, text: &str| std::fs::write(runs.join(name), text).unwrap();
    let good = r#"{"ground":"9","part":"p","asked":"q","answer":false,"unit":null,"detail":"d"}"#;
    let ends = [
        ("good", "0"),
        ("hung", "124"),
        ("crashed", "139"),
        ("killed", "137"),
        ("silent", "0"),
        ("late", "not-run"),
    ];
    for (name, _) in ends {
        write(&format!("grounds.{name}.out"), if name == "silent" { "" } else { good });
        write(&format!("grounds.{name}.err"), &format!("the last words of {name}\n"));
    }
    let device =
        r#"{"ground":"device","part":"device","asked":"name","answer":"A GPU","unit":null,"detail":""}"#;
    write("device.device.out", device);
    write("device.device.err", "");
    let list = ends.map(|(name, status)| format!("grounds\t{name}\t{status}\t9\t1.0\t2.5\n")).concat();
    write("list.tsv", &format!("device\tdevice\t0\t9\t1.0\t1.5\n{list}"));
    write("machine.tsv", "software\tno\ndriver_version\t1.2\n");
    let mut command = Command::new("python3");
    command.arg(kit().join("report.py")).arg(out.path());
    let output = output_within(PATIENCE, command);
    assert!(output.status.success(), "{output:?}");

    let (report, text) = report(out.path());
    let results: Vec<_> = report["runs"].as_array().unwrap().iter().map(|run| &run["result"]).collect();
    let expected = [
        "timed out",
        "crashed: SIGSEGV",
        "crashed: SIGKILL",
        "failed: its output is not as agreed",
        "not run: its section's time was up",
        "ended",
        "ended",
    ];
    assert_eq!(results, expected);
    assert_eq!(report["ran_on"], "hardware");
    assert!(text.starts_with("# The GPU kit on A GPU, driver 1.2"), "{text}");
    let place = |words: &str| text.find(words).unwrap_or_else(|| panic!("no {words:?} in {text}"));
    assert!(place("the last words of hung") < place("## Grounds"));
    assert!(place("the last words of crashed") < place("## Grounds"));
    assert!(!text.contains("the last words of good"));
}

#[test]
fn turns_are_watched_and_told_of_both_programs() {
    if !has_python() {
        return;
    }
    let (report, text) = run("turns", &[("KIT_PAIRS", "alone:tiny:16 one:busy:16 gap20:busy:16")]);
    let parts = report["runs"].as_array().unwrap().iter().filter(|run| run["section"] == "turns");
    let told: Vec<_> = parts.map(|run| run["answers"].as_array().unwrap().len()).collect();
    assert_eq!(told, [1, 4, 6], "{text}");
}

#[test]
fn a_training_of_pytorch_is_compared_in_all_ways_and_every_answer_is_yes() {
    let Some(python) = torch::python() else { return };
    let python = python.to_str().unwrap();
    let options = [("KIT_PYTHON", python), ("KIT_MODELS", "mlp"), ("KIT_STEPS", "120")];
    let (report, text) = run("pytorch", &options);
    let runs = report["runs"].as_array().unwrap();
    let answers =
        runs.iter().filter(|run| run["section"] == "pytorch").flat_map(|run| run["answers"].as_array());
    let verdicts: Vec<_> = answers.flatten().filter_map(|answer| answer["answer"].as_bool()).collect();
    assert_eq!(verdicts, [true; 6], "{text}");
    assert!(!text.contains("| 0 switches |"), "{text}");
}
