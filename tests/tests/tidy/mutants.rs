//! The deliberate bugs of `tests/mutants/` must still apply.

use std::process::Command;

use meseta_tests::mutants;

use super::root;

#[test]
fn mutants_apply_to_the_tree() {
    let all = mutants::all(&root()).expect("they can be read");
    assert!(all.len() >= 40, "{} mutants", all.len());
    let git = Command::new("git").arg("--version").output();
    if git.is_err() {
        eprintln!("not run: git is not installed");
        return;
    }
    for mutant in all {
        let mut apply = Command::new("git");
        apply.args(["apply", "--check"]).arg(&mutant.path);
        let checked = apply.current_dir(root()).output().expect("git");
        assert!(
            checked.status.success(),
            "the patch {} does not apply any more: make what it makes wrong wrong in today's code, or remove it if \
             there is no such code\n{}",
            mutant.path.display(),
            String::from_utf8_lossy(&checked.stderr)
        );
    }
}
