# Marks where commands begin and end (OSC 133), for recordings made by `ah agent record`; does nothing anywhere else.
# In ~/.config/fish/config.fish:  ah shell-init fish | source
# From version 4 on, fish makes these marks by itself.
if status is-interactive; and set -q AH_RECORDING; and not set -q __ah_marks; and string match -qr '^[0-3]\.' -- $version
    set -g __ah_marks 1

    function __ah_start --on-event fish_preexec
        printf '\e]133;C;cmdline_url=%s\a' (string sub -l 2000 -- $argv[1] | string join \n | string escape --style=url)
    end

    function __ah_end --on-event fish_postexec
        printf '\e]133;D;%s\a' $status
    end

    function __ah_prompt --on-event fish_prompt
        printf '\e]133;A\a'
    end
end
