"""From evidence to lease: `session` is the order of steps, `judgement` what is found, `conclusion` what follows."""
