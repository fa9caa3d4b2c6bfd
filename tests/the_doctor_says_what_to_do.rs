//! `tidegate doctor` tells whether jobs can run, in words and by its exit status, and what to do where not.

mod support;

use std::process::{Command, Output};
use support::patience::output;
use support::{Manager, command};
use tidegate_ffi::cuda::functions::find;

fn doctor(words: &[&str]) -> Command {
    let mut command = command();
    command.arg("doctor").args(words);
    command
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn jobs_can_run_on_software_gpus_beside_a_manager() {
    let manager = Manager::start("1x4MiB", &["--unit", "64KiB"]);
    let mut doctor = doctor(&["--software-gpu", "2x64MiB"]);
    doctor.env("TIDEGATE_SOCKET", manager.socket()).env("CUDA_MPS_PIPE_DIRECTORY", "/tmp");
    let output = output(doctor);
    let said = text(&output);
    assert!(output.status.success(), "{said}");
    let of = |topic: &str| -> Vec<&str> {
        said.lines().filter(|line| line.split_whitespace().nth(1) == Some(topic)).collect()
    };
    assert_eq!(of("GPU").len(), 2, "{said}");
    assert!(of("GPU").iter().all(|line| line.starts_with("ok ") && line.ends_with("64.0 MiB")), "{said}");
    assert!(of("driver")[0].contains("libsoftgpu_cuda.so"), "{said}");
    assert!(of("manager")[0].contains("answers at") && of("manager")[0].ends_with("jobs: 0"), "{said}");
    assert!(of("environment")[0].starts_with("warn") && of("environment")[0].contains("MPS"), "{said}");
    assert!(said.lines().last().unwrap().starts_with("jobs can run here"), "{said}");
}

#[test]
fn what_the_driver_has_and_tidegate_does_not_know_is_listed() {
    let output = output(doctor(&["--software-gpu", "1x64MiB", "--json"]));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let findings = report["findings"].as_array().unwrap();
    let functions = findings.iter().find(|finding| finding["topic"] == "functions").unwrap();
    let unknown: Vec<&str> =
        functions["details"].as_array().into_iter().flatten().filter_map(|name| name.as_str()).collect();
    assert_eq!(functions["mark"] == "good", unknown.is_empty(), "{functions}");
    assert!(unknown.iter().all(|name| find(name).is_none()), "{unknown:?}");
}

#[test]
fn without_a_gpu_no_job_can_run_and_words_say_why() {
    let mut doctor = doctor(&["--json"]);
    // Nor where the machine has one.
    doctor.env("CUDA_VISIBLE_DEVICES", "").env_remove("TIDEGATE_SOFTGPU");
    let output = output(doctor);
    assert_eq!(output.status.code(), Some(1));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["jobs_can_run"], false);
    let driver = &report["findings"][0];
    assert_eq!((&driver["topic"], &driver["mark"]), (&"driver".into(), &"failure".into()));
    let says = driver["says"].as_str().unwrap();
    assert!(says.contains("no CUDA driver") || says.contains("no GPU"), "{says}");
    assert!(driver["advice"].as_str().is_some_and(|advice| !advice.is_empty()));
}
