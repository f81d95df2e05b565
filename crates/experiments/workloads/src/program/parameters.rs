//! The parameters of the workload `program`.

use longma_lab::{Kind, Parameter, Setting};
use std::collections::BTreeMap;

/// All parameters with their defaults.
pub(super) fn all() -> Vec<Parameter> {
    let parameter =
        |name, kind, default: Option<Setting>, description| Parameter { name, kind, default, description };
    let none = || Some(Setting::Texts(Vec::new()));
    let levels = Kind::Word(&["functional", "cache", "timing"]);
    vec![
        parameter(
            "program",
            Kind::Text,
            None,
            "the program's file, relative to `folder`, or `guests:NAME` for a shipped program; then its first arguments after spaces, without quoting",
        ),
        parameter(
            "folder",
            Kind::Text,
            Some("".into()),
            "folder of the programs, relative to the experiment file's folder; not part of a result",
        ),
        parameter(
            "variant",
            Kind::Text,
            Some("".into()),
            "added to the file's name: `-lasx` for a build with vectors",
        ),
        parameter("arguments", Kind::Texts, none(), "further arguments"),
        parameter(
            "argument",
            Kind::Text,
            Some("".into()),
            "its first argument, for sweeps; omitted if empty",
        ),
        parameter(
            "files",
            Kind::Texts,
            none(),
            "files that the program reads, relative to `folder`; copies of them are all that its current folder has, \
                and their contents are part of a result",
        ),
        parameter(
            "root",
            Kind::Text,
            Some("".into()),
            "folder, relative to `folder`, that the program sees as `/`, with `program` as a path in it; each run gets a \
                copy, and the contents are part of a result; the host's files if empty",
        ),
        parameter("level", levels, Some("functional".into()), "level of detail of the model"),
        parameter(
            "roi",
            Kind::Flag,
            Some(Setting::Flag(false)),
            "count only the program's region of interest",
        ),
        parameter(
            "warm",
            Kind::Text,
            Some("".into()),
            "with `roi`: the models are warmed by this many million instructions before the region, \
                or the caches by `all`; 20, as in `longma run`, if empty",
        ),
        parameter(
            "checkpoint",
            Kind::Flag,
            Some(Setting::Flag(false)),
            "with `roi`: run to the region once for all points that vary only caches, memories and cores, and continue \
                from there with cold models",
        ),
        parameter(
            "sample",
            Kind::Text,
            Some("".into()),
            "with level `timing`: time a sample of the program, as the plan of `longma run --sample` states; \
                all of it if empty",
        ),
        parameter(
            "max_instructions",
            Kind::Integer,
            Some(Setting::Integer(0)),
            "end the run after this many counted instructions; 0 for no limit",
        ),
        parameter(
            "max_time",
            Kind::Text,
            Some("".into()),
            "end the run after this much counted simulated time, such as 10ms; no limit if empty",
        ),
        parameter(
            "core",
            Kind::Text,
            Some("".into()),
            "timing model of the cores; the machine file's if empty",
        ),
        parameter(
            "numa",
            Kind::Text,
            Some("".into()),
            "page placement; the default of `longma run` if empty",
        ),
        parameter("cpu", Kind::Text, Some("".into()), "the cores it may use, such as 0,2-3; all if empty"),
        parameter(
            "seed",
            Kind::Integer,
            Some(Setting::Integer(1)),
            "seed of the simulation's random choices",
        ),
        parameter(
            "stack_offset",
            Kind::Integer,
            Some(Setting::Integer(0)),
            "lowers the initial stack by this many bytes, a multiple of 16, to vary memory layout",
        ),
        parameter(
            "translation",
            Kind::Text,
            Some("".into()),
            "optimizations of the translation of a program for another architecture, in the syntax of \
                `longma run --translation`; the default if empty",
        ),
        parameter(
            "wire",
            Kind::Named,
            Some(Setting::Named(BTreeMap::new())),
            "the TCP sender at the other end of a MAC's wire: `device`, one or several separated by \
                spaces, and the keys of `longma run --wire`; no sender if empty",
        ),
        parameter("environment", Kind::Named, Some(Setting::Named(BTreeMap::new())), "its whole environment"),
        parameter(
            "prints",
            Kind::Named,
            Some(Setting::Named(BTreeMap::new())),
            "metrics that it prints: regular expressions whose first group is the number; `host.NAME` \
                if it depends on the host's speed",
        ),
        parameter(
            "status",
            Kind::Integer,
            Some(Setting::Integer(0)),
            "the exit status of a run that succeeds",
        ),
    ]
}
