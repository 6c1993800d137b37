use super::*;
use proptest::prelude::*;

/// What these variables, and no others, say.
fn environment(variables: &[(&str, &str)]) -> (Settings, Option<SettingError>) {
    Settings::from_environment(|name| {
        let found = variables.iter().find(|(other, _)| *other == name);
        found.map(|(_, value)| value.into())
    })
}

fn error_of(variables: &[(&str, &str)]) -> String {
    let (settings, error) = environment(variables);
    assert_eq!(settings, Settings::DEFAULT, "the default stands in");
    error.unwrap().to_string()
}

#[test]
fn without_variables_the_defaults_stand() {
    assert_eq!(environment(&[]), (Settings::default(), None));
    assert_eq!(Settings::default().check(), Ok(()));
}

#[test]
fn kvikios_variables_mean_what_they_mean_there() {
    let (settings, error) = environment(&[
        ("KVIKIO_COMPAT_MODE", "on"),
        ("KVIKIO_NTHREADS", "3"),
        ("KVIKIO_TASK_SIZE", "199"),
        ("KVIKIO_GDS_THRESHOLD", "0"),
        ("KVIKIO_BOUNCE_BUFFER_SIZE", "1000"),
        ("KVIKIO_AUTO_DIRECT_IO_READ", "YES"),
        ("KVIKIO_AUTO_DIRECT_IO_WRITE", "off"),
        ("KVIKIO_AUTO_DIRECT_IO_READ_OVERREAD", "17"),
        ("KVIKIO_THREAD_POOL_PER_BLOCK_DEVICE", "True"),
        // Nothing that this library has.
        ("KVIKIO_HTTP_TIMEOUT", "nonsense"),
    ]);
    assert_eq!(error, None);
    let wanted = Settings {
        compat_mode: CompatMode::On,
        num_threads: 3,
        task_size: 199,
        gds_threshold: 0,
        bounce_buffer_size: 1000,
        auto_direct_io_read: true,
        auto_direct_io_write: false,
        auto_direct_io_read_overread: true,
        thread_pool_per_block_device: true,
        ..Settings::DEFAULT
    };
    assert_eq!(settings, wanted);
}

#[test]
fn ours_wins_even_over_nonsense() {
    let variables = [
        ("KVIKIO_TASK_SIZE", "lots"),
        ("FABRICAST_TASK_SIZE", " 8192 "),
        ("KVIKIO_NTHREADS", "2"),
        ("KVIKIO_NUM_THREADS", "3"),
        ("FABRICAST_NUM_THREADS", "4"),
    ];
    let (settings, error) = environment(&variables);
    assert_eq!(error, None);
    assert_eq!((settings.task_size, settings.num_threads), (8192, 4));
}

#[test]
fn both_names_of_kvikios_threads_count_but_may_not_contradict() {
    let threads = |variables: &[_]| environment(variables).0.num_threads;
    assert_eq!(threads(&[("KVIKIO_NTHREADS", "5")]), 5);
    assert_eq!(threads(&[("KVIKIO_NUM_THREADS", "6")]), 6);
    let same = [("KVIKIO_NTHREADS", "7"), ("KVIKIO_NUM_THREADS", "7")];
    assert_eq!(threads(&same), 7);
    let error = error_of(&[("KVIKIO_NTHREADS", "7"), ("KVIKIO_NUM_THREADS", "8")]);
    for word in [
        "num_threads",
        "KVIKIO_NTHREADS=7",
        "KVIKIO_NUM_THREADS=8",
        "unset",
    ] {
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn nonsense_is_an_error_that_names_variable_value_range_and_what_to_do() {
    for (variable, value, range) in [
        ("KVIKIO_TASK_SIZE", "4M", "1 to 1099511627776 bytes"),
        ("KVIKIO_TASK_SIZE", "0", "1 to 1099511627776 bytes"),
        ("KVIKIO_TASK_SIZE", "", "default 4194304"),
        ("KVIKIO_TASK_SIZE", "-1", "default 4194304"),
        ("KVIKIO_NUM_THREADS", "0", "1 to 1024 threads (default 8)"),
        ("FABRICAST_NUM_THREADS", "1025", "1 to 1024 threads"),
        (
            "KVIKIO_COMPAT_MODE",
            "maybe",
            "AUTO, ON or OFF (default AUTO)",
        ),
        ("KVIKIO_AUTO_DIRECT_IO_READ", "", "on or off (default off)"),
        ("FABRICAST_IO_URING", "auto", "on or off (default on)"),
        ("FABRICAST_IO_URING_DEPTH", "4097", "1 to 4096 pieces"),
        ("KVIKIO_BOUNCE_BUFFER_SIZE", "99999999999999999999", "bytes"),
    ] {
        let (_, error) = environment(&[(variable, value)]);
        let error = error.unwrap();
        assert_eq!(error.variable(), Some(variable));
        assert_eq!(error.value(), value);
        let text = error.to_string();
        for part in [
            &format!("{variable}={value}"),
            range,
            "unset",
            error.setting(),
        ] {
            assert!(text.contains(part), "{part:?} in {text:?}");
        }
        error_of(&[(variable, value)]);
    }
}

#[test]
fn a_value_that_is_no_text_is_an_error_too() {
    use std::os::unix::ffi::OsStringExt;
    let (_, error) = Settings::from_environment(|name| {
        (name == "KVIKIO_TASK_SIZE").then(|| OsString::from_vec(vec![b'4', 0xff]))
    });
    assert_eq!(error.unwrap().setting(), "task_size");
}

#[test]
fn one_bad_variable_does_not_hide_the_others() {
    let variables = [("KVIKIO_TASK_SIZE", "?"), ("KVIKIO_GDS_THRESHOLD", "5")];
    let (settings, error) = environment(&variables);
    assert_eq!(settings.gds_threshold, 5);
    assert_eq!(error.unwrap().setting(), "task_size");
}

#[test]
fn code_out_of_range_is_refused_by_name() {
    let mut settings = Settings {
        task_size: 0,
        ..Settings::DEFAULT
    };
    let error = settings.check().unwrap_err();
    assert_eq!((error.setting(), error.variable()), ("task_size", None));
    assert_eq!(
        error.to_string(),
        "task_size = 0: must be 1 to 1099511627776 bytes (default 4194304)"
    );
    settings.task_size = 1;
    assert_eq!(settings.check(), Ok(()));
}

/// The table that users read is the one that counts.
#[test]
fn the_documentation_has_each_setting_with_its_variables_default_and_range() {
    let documented: Vec<&str> = include_str!("../settings.rs")
        .lines()
        .filter(|line| line.starts_with("/// | `"))
        .collect();
    assert_eq!(documented.len(), SETTINGS.len());
    for (line, setting) in documented.iter().zip(&SETTINGS) {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        let own = format!("FABRICAST_{}", setting.name.to_uppercase());
        assert_eq!(setting.variable, own);
        let kvikio = setting.kvikio.iter();
        let variables: Vec<_> = kvikio.map(|name| format!("`{name}`")).collect();
        let default = setting.kind.text((setting.get)(&Settings::DEFAULT));
        let range = match setting.kind {
            Kind::Number { least, most } => format!("{least} to {most}"),
            Kind::Switch => "on, off".to_owned(),
            Kind::Compat => "AUTO, ON, OFF".to_owned(),
        };
        let name = format!("`{}`", setting.name);
        assert_eq!(
            (cells[1], cells[2], cells[4], cells[5]),
            (&*name, &*variables.join(", "), &*default, &*range)
        );
        assert!(
            cells[3].starts_with(setting.unit) || cells[3].contains(setting.unit),
            "{line}"
        );
    }
}

#[test]
fn each_row_of_the_table_is_about_its_own_field() {
    for setting in &SETTINGS {
        let mut changed = Settings::DEFAULT;
        let other = match setting.kind {
            Kind::Number { .. } => 7,
            Kind::Switch => 1 - (setting.get)(&changed),
            Kind::Compat => 2,
        };
        (setting.set)(&mut changed, other);
        for row in &SETTINGS {
            let wanted = if row.name == setting.name {
                other
            } else {
                (row.get)(&Settings::DEFAULT)
            };
            assert_eq!(
                (row.get)(&changed),
                wanted,
                "{} by {}",
                row.name,
                setting.name
            );
        }
    }
}

proptest! {
    /// Any text in any variable: a value in its range or an error, and what was understood is
    /// written back the same.
    #[test]
    fn any_text_is_a_value_in_range_or_an_error(
        row in 0..SETTINGS.len(),
        text in "([0-9]{1,20}|[ a-zA-Z0-9+-]{0,6}|on|OFF|auto)",
    ) {
        let setting = &SETTINGS[row];
        let (settings, error) = environment(&[(setting.variable, &text)]);
        prop_assert_eq!(settings.check(), Ok(()));
        match error {
            Some(error) => {
                prop_assert_eq!(settings, Settings::DEFAULT);
                prop_assert_eq!(error.setting(), setting.name);
            }
            None => {
                let again = setting.kind.text((setting.get)(&settings));
                prop_assert_eq!(environment(&[(setting.variable, &again)]).0, settings);
            }
        }
    }
}
