//! Wrong files, each with the place, the message and the cure.

use super::*;

/// A job without a mistake, to which a wrong part is added.
const GOOD: &str = "name = \"a\"\n[task]\ncommand = \"true\"\n";

fn told(text: &str) -> String {
    from_toml(text)
        .map(|spec| format!("no mistake: {spec:?}"))
        .unwrap_or_else(|e| e.to_string())
}

fn assert_told(cases: &[(&str, &str)]) {
    let wrong: Vec<String> = cases
        .iter()
        .filter(|(text, expected)| told(text) != *expected)
        .map(|(text, expected)| format!("{text}\n  expected {expected}\n  was told {}", told(text)))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// Appends each wrong part to a good job of three lines, and checks the message.
fn assert_told_behind(cases: &[(&str, &str)]) {
    let whole: Vec<(String, &str)> = cases
        .iter()
        .map(|(part, expected)| (format!("{GOOD}{part}"), *expected))
        .collect();
    let whole: Vec<(&str, &str)> = whole
        .iter()
        .map(|(text, told)| (text.as_str(), *told))
        .collect();
    assert_told(&whole);
}

#[test]
fn invalid_text_and_fields_are_refused() {
    assert_told(&[
        (
            "name = \"a\ncount = 1",
            "1:10: this is not TOML: invalid basic string, expected `\"`; correct the text here",
        ),
        (
            "name = \"a\"\ncommand = \"true\"\n[task]\nargv = [\"b\"]",
            "2:1: the job has no field `command`; `command` belongs in [task] or [check]",
        ),
        (
            "name = \"a\"\ntimeout = \"1secs\"\n[task]\ncommand = \"b\"",
            "2:1: the job has no field `timeout`; `timeout` belongs in [check] or [batch]",
        ),
        (
            "name = \"a\"\nreplicas = 2\n[task]\ncommand = \"b\"",
            "2:1: the job has no field `replicas`; write `count`",
        ),
        (
            "name = \"a\"\n[task]\ncomand = \"b\"\n",
            "3:1: [task] has no field `comand`; write `command`",
        ),
        (
            "name = \"a\"\n[task]\ncommand = \"b\"\n[resources]\nmemory = \"1GB\"\nxyz = 1",
            "5:1: [resources] has no field `memory`; write `mem`\n\
             6:1: [resources] has no field `xyz`; its fields are `cpus`, `mem`, `disk`, `gpus`, `custom`",
        ),
        (
            "[task]\ncommand = \"b\"",
            "1:1: the job has no `name`; add `name = \"...\"`",
        ),
        ("name = \"a\"", "1:1: the job has no `task`; add [task]"),
        (
            "name = \"a\"\ntask = \"b\"",
            "2:8: [task] is a text, not a table; write a table of its fields: `command`, `argv`, `user`, `env`, `uris`, `kill_grace`",
        ),
        (
            "name = \"a\"\ncount = \"3\"\n[task]\ncommand = \"b\"",
            "2:9: `count` is a text, not a whole number; write a whole number from 1 to 1000000",
        ),
        (
            "name = \"a\"\ncount = 0\npriority = 101\n[task]\ncommand = \"b\"",
            "2:9: `count` cannot be 0; write a whole number from 1 to 1000000\n\
             3:12: `priority` cannot be 101; write a whole number from 0 to 100",
        ),
        (
            "name = \"a\"\nkind = \"daemon\"\n[task]\ncommand = \"b\"",
            "2:8: `kind` cannot be \"daemon\"; write one of \"service\", \"batch\", \"cron\"",
        ),
        (
            "name = \"a\"\nbest_effort = \"yes\"\nports = \"http\"\n[task]\ncommand = \"b\"",
            "2:15: `best_effort` is a text, not true or false; write `best_effort = true` or `false`, without quotes\n\
             3:9: `ports` is a text, not a list of texts; write a list of texts, `[\"a\", \"b\"]`",
        ),
        (
            "name = \"a\"\n[task]\ncommand = \"b\"\nenv = { N = 1 }",
            "4:13: `N` of `env` is a whole number, not a text; put the value in quotes",
        ),
        (
            "name = \"a\"\n[task]\ncommand = \"b\"\nkill_grace = \"10 seconds\"",
            "4:14: `kill_grace` = \"10 seconds\" is not a duration; write a number and a unit (ms, secs, mins, hrs, days, weeks), as `\"10secs\"`",
        ),
        (
            "name = \"a\"\n[task]\ncommand = \"b\"\nkill_grace = 10",
            "4:14: `kill_grace` is a whole number, not a duration; write a number and a unit (ms, secs, mins, hrs, days, weeks), as `\"10secs\"`",
        ),
    ]);
    assert_told_behind(&[
        (
            "[resources]\nmem = 64",
            "5:7: `mem` is a whole number, not a size with its unit; write `\"64MB\"` if megabytes are meant",
        ),
        (
            "[resources]\nmem = \"64 megs\"",
            "5:7: `mem` = \"64 megs\" is not a size; write a whole number and a unit (KB, MB, GB, TB), as `\"64MB\"`",
        ),
        (
            "[resources]\ncpus = -1",
            "5:8: `cpus` cannot be -1; write a number of thousandths above 0, as `0.5`",
        ),
        (
            "[resources]\ncpus = 0.0005",
            "5:8: `cpus` cannot be 0.0005; write a number of thousandths above 0, as `0.5`",
        ),
        (
            "[resources]\ncpus = 0.33333",
            "5:8: `cpus` = 0.33333 is finer than a thousandth; write three decimals at most",
        ),
        (
            "[constraints]\nattribute = \"rack\"",
            "4:1: `constraints` is a table, not a list of tables; begin each with `[[constraints]]`",
        ),
        (
            "[restart]\nfirst = \"0secs\"",
            "5:9: `first` cannot be zero; write `\"1secs\"` or more",
        ),
    ]);
}

#[test]
fn incompatible_fields_are_refused() {
    assert_told(&[
        (
            "name = \"Web\"\n[task]\ncommand = \"b\"",
            "1:8: \"Web\" is not a job name; write 1 to 100 of `a-z`, `0-9`, `-` and `.`, beginning with a letter or digit",
        ),
        (
            "name = \"a\"\nafter = [\"b\", \"a\"]\n[task]\ncommand = \"b\"",
            "2:15: a job cannot wait for itself; remove it from `after`",
        ),
        (
            "name = \"a\"\nports = [\"http\", \"http\"]\n[task]\ncommand = \"b\"",
            "2:18: `ports` has \"http\" twice; keep one of the two",
        ),
        (
            "name = \"a\"\n[task]\ncommand = \"b\"\nargv = [\"b\"]",
            "4:8: [task] has both `command` and `argv`; keep one of the two",
        ),
        (
            "name = \"a\"\n[task]\nuser = \"b\"",
            "2:1: [task] is incomplete; add one of `command`, `argv`",
        ),
        (
            "name = \"a\"\n[task]\nargv = []",
            "3:8: `argv` names no program; write the program first, as `[\"/bin/date\", \"-u\"]`",
        ),
        (
            "name = \"a\"\n[task]\ncommand = \"b\"\nenv = { N = \"${idx}\" }",
            "4:13: `N` has the unknown variable `${idx}`; write `${index}`, `${attempt}`, `${port.NAME}` or `${hostname}`, or `$${` for a plain `${`",
        ),
        (
            "name = \"a\"\nports = [\"http\"]\n[task]\ncommand = \"b\"\nenv = { N = \"${port.https}\" }",
            "5:13: port \"https\" does not exist; write one of http, or add it to `ports`",
        ),
        (
            "name = \"a\"\nkind = \"cron\"\n[task]\ncommand = \"b\"",
            "2:8: a cron job has no schedule; add [cron] with a `schedule`",
        ),
        (
            "name = \"a\"\nkind = \"cron\"\n[task]\ncommand = \"b\"\n[cron]\nschedule = \"0 25 * * *\"\ntime_zone = \"UTC\"",
            "6:12: \"25\" is not a valid hour of a schedule; write numbers from 0 to 23, as `*`, `0`, `0-23` or `*/5`, with commas between",
        ),
        (
            "name = \"a\"\nkind = \"cron\"\n[task]\ncommand = \"b\"\n[cron]\nschedule = \"@daily\"\ntime_zone = \"Berlin\"",
            "7:13: unknown time zone \"Berlin\"; write a name of the IANA database, as `Europe/Berlin` or `UTC`",
        ),
        (
            "name = \"a\"\nkind = \"batch\"\n[task]\ncommand = \"b\"\n[update]\ncanary = 1",
            "5:1: a batch has no [update]; remove it, or write `kind = \"service\"`",
        ),
        (
            "name = \"a\"\nrole = \"a//b\"\nbest_effort = true\n[task]\ncommand = \"b\"\n[volume]\nsize = \"1GB\"\npath = \"../data\"",
            "2:8: Role 'a//b' cannot contain two adjacent slashes; write a role as `meseta roles` lists them\n\
             3:15: a job on revocable resources cannot have a volume; remove `best_effort` or [volume]\n\
             8:8: \"../data\" is not a path below the sandbox; write a relative path without `..`, as `\"data\"`",
        ),
        (
            "name = \"a\"\ncount = 20001\n[task]\ncommand = \"b\"\n[gang]\n",
            "2:9: a gang cannot have 20001 tasks; write 20000 at most, or remove [gang]",
        ),
        (
            "name = \"a\"\n[task]\ncommand = \"b\"\n[gang]\n[volume]\nsize = \"1GB\"\npath = \"data\"",
            "4:1: the instances of a gang cannot have volumes: each would wait for the agents of all; remove [gang] or [volume]\n\
             5:1: the role `*` cannot have reservations, and so no volumes; write a `role` at the top of the file, as `role = \"data\"`",
        ),
    ]);
}

#[test]
fn contradictions_within_file_are_refused() {
    assert_told_behind(&[
        (
            "[check]\ntcp = { port = \"http\" }",
            "5:16: port \"http\" does not exist; add `ports = [\"http\"]` at the top of the file",
        ),
        (
            "[check]\ninterval = \"1secs\"",
            "4:1: [check] is incomplete; add one of `command`, `http`, `tcp`",
        ),
        (
            "[limits]\nmem = \"1MB\"",
            "5:7: the limit of `mem` is below the guarantee; raise it to `mem` of [resources], or lower that",
        ),
        (
            "[[constraints]]\nattribute = \"rack\"",
            "4:1: [[constraints]] is incomplete; add one of `equals`, `not_equals`, `in`, `matches`, `exists`, `distinct`, `spread`",
        ),
        (
            "[[constraints]]\nattribute = \"@host\"\nexists = true",
            "5:13: attribute \"@host\" does not exist; write an attribute of agents, or one of @hostname, @agent_id, @region, @zone",
        ),
        (
            "[[constraints]]\nattribute = \"rack\"\nmatches = \"(\"",
            "6:11: \"(\" is not a regular expression; correct it; the syntax is that of the Rust crate `regex`",
        ),
        (
            "[update]\nmax_surge = 0",
            "5:13: an update with neither surge nor missing instances cannot begin; write 1 or more in `max_surge` or `max_unavailable`",
        ),
        (
            "[update]\ncanary = 2",
            "5:10: 2 canaries are more than the 1 instances; lower `canary` or raise `count`",
        ),
        (
            "[restart]\nfirst = \"1hrs\"",
            "5:9: the first pause of [restart] is longer than the longest; raise `longest` or lower `first`",
        ),
        (
            "[batch]\nretries = 1",
            "4:1: a service has no [batch]; remove it, or write `kind = \"batch\"`",
        ),
        (
            "[resources.custom]\ncpus = 1\nports = 2",
            "5:1: `cpus` is not a custom resource; write `cpus` in [resources] itself\n\
             6:1: `ports` is not a custom resource; name ports in `ports` at the top of the file",
        ),
    ]);
}

/// Each file has a megabyte; earlier they took minutes.
#[test]
fn malicious_file_is_refused_soon() {
    let list = |count: usize, entry: &dyn Fn(usize) -> String| {
        let entries: Vec<String> = (0..count).map(entry).collect();
        entries.join(",")
    };
    let good = "\"name\": \"a\", \"task\": { \"command\": \"true\" }";
    let unknown = list(80_000, &|at| format!("\"u{at}\": 1"));
    let names = list(80_000, &|at| format!("\"n{at}\""));
    let pattern =
        |at: usize| format!("{{ \"attribute\": \"a\", \"matches\": \"\\\\w{{900}}{at}\" }}");
    let patterns = list(19_000, &pattern);
    let constrained = |at: usize| {
        let patterns = list(60, &|of| pattern(of + at * 60).replace("\\\\w{900}", "x"));
        format!(
            "{{ \"name\": \"j{at}\", \"task\": {{ \"command\": \"true\" }}, \"constraints\": [{patterns}] }}"
        )
    };
    let jobs = list(200, &constrained);
    let many = list(40_000, &|_| "{}".to_owned());
    for (text, told) in [
        (format!("{{ {unknown} }}"), "the job has no field `u0`"),
        (
            format!("{{ {good}, \"after\": [{names}] }}"),
            "`after` has 80000 entries; write 256 at most",
        ),
        (
            format!("{{ {good}, \"ports\": [{names}] }}"),
            "`ports` has 80000 entries; write 100 at most",
        ),
        (
            format!("{{ {good}, \"constraints\": [{patterns}] }}"),
            "`constraints` has 19000 entries; write 64 at most",
        ),
        (
            format!("{{ \"jobs\": [{jobs}] }}"),
            "the file has more than 256 different `matches`",
        ),
        (
            format!("{{ \"jobs\": [{many}] }}"),
            "`jobs` has 40000 entries; write 1000 at most",
        ),
    ] {
        assert!(text.len() <= FILE_BYTES_MAX, "{}", text.len());
        let begun = std::time::Instant::now();
        let mistakes = submission(&text).expect_err(told);
        // A bound for a slow machine under load: still far below minutes.
        assert!(
            begun.elapsed().as_secs() < 10,
            "{told}: {:?}",
            begun.elapsed()
        );
        assert!(mistakes.to_string().contains(told), "{mistakes}");
        assert!(mistakes.errors.len() <= MISTAKES_MAX);
    }
}

#[test]
fn job_beyond_stored_size_is_refused() {
    let of = |bytes: usize| {
        let command = "x".repeat(bytes);
        format!("name = \"a\"\n[task]\ncommand = \"{command}\"\n")
    };
    assert!(told(&of(100_000)).starts_with("no mistake"));
    let text = told(&of(200_000));
    assert!(text.starts_with("2:1: the job has 200"), "{text}");
    assert!(
        text.ends_with("beside `env`; write 131072 at most, and fetch the rest with `uris`"),
        "{text}"
    );
    let uris = vec!["\"http://a/b\""; 10_000].join(", ");
    let text = told(&format!("{GOOD}uris = [{uris}]\n"));
    assert!(text.contains("bytes beside `env`"), "{text}");
}

#[test]
fn impossible_job_is_refused_with_file() {
    assert_told(&[
        (
            "name = \"a\"\n[task]\ncommand = \"a\\u0000b\"",
            "3:11: `command` has a NUL byte; remove it",
        ),
        (
            "name = \"a\"\n[task]\nargv = [\"a\", \"\\u0000\"]\nenv = { A = \"\\u0000\" }",
            "3:14: an item of `argv` has a NUL byte; remove it\n4:13: `A` of `env` has a NUL byte; remove it",
        ),
        (
            "name = \"a\"\n[task]\ncommand = \"b\"\nuser = \"\"",
            "4:8: \"\" is not a user name; write a user that the agents know, or leave `user` out",
        ),
        (
            "name = \"a\"\n[task]\ncommand = \"b\"\nuser = \"no\\nbody\"",
            "4:8: \"no\\nbody\" is not a user name; write a user that the agents know, or leave `user` out",
        ),
        (
            "name = \"a\"\n[task]\ncommand = \"b\"\nuris = [{ uri = \"u\", output_file = \"../x\" }]",
            "4:36: \"../x\" is not a path below the sandbox; write a relative path without `..`, as `\"data.tar\"`",
        ),
    ]);
    assert_told(&[(
        "name = \"a\"\nrole = \"r\"\n[task]\ncommand = \"b\"\n[volume]\nsize = \"1MB\"\npath = \"stdout\"",
        "7:8: \"stdout\" is a file of each task; write another path, as `\"data\"`",
    )]);
}

/// Some editors write a mark before the text, and lines that end with two characters.
#[test]
fn foreign_marks_and_newlines_are_read() {
    let plain = "name = \"a\"\n[task]\ncommand = \"\"\"\ntrue\nfalse\n\"\"\"\n";
    let expected = from_toml(plain).expect("a job");
    for text in [
        plain.replace('\n', "\r\n"),
        format!("\u{feff}{plain}"),
        format!("\u{feff}{}", plain.replace('\n', "\r\n")),
    ] {
        assert_eq!(from_text(&text).expect("the same"), expected);
        assert_eq!(
            all_from_text(&text).expect("the same"),
            std::slice::from_ref(&expected)
        );
    }
    let json = format!("\u{feff}{}", to_json(&expected));
    assert_eq!(from_text(&json).expect("the same"), expected);
    assert_eq!(all_from_text(&json).expect("the same"), [expected]);
}
