"""The pytest plugin: `plugin` has the hooks, `markers` the options, `cassette_run` records and replays."""
