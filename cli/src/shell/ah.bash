# Marks where commands begin and end (OSC 133), for recordings made by `ah agent record`; does nothing anywhere else.
# In ~/.bashrc, at its end:  eval "$(ah shell-init bash)"
if [[ $- == *i* && -n ${AH_RECORDING-} && -z ${__ah_marks-} && -n ${BASH_VERSINFO-} ]] &&
    ((BASH_VERSINFO[0] > 4 || (BASH_VERSINFO[0] == 4 && BASH_VERSINFO[1] >= 4))); then
    __ah_marks=1 __ah_ran='' __ah_none='' __ah_number=''

    # The text with everything but plain characters as %XX.
    __ah_escape() {
        local LC_ALL=C text=$1 i c code
        for ((i = 0; i < ${#text} && i < 2000; i++)); do
            c=${text:i:1}
            case $c in
                [a-zA-Z0-9/._~-]) printf '%s' "$c" ;;
                *)
                    printf -v code '%d' "'$c"
                    printf '%%%02X' $((code & 255))
                    ;;
            esac
        done
    }

    # The number of the last command in the history, and the command.
    __ah_history() {
        local HISTTIMEFORMAT=''
        builtin history 1 2>/dev/null
    }

    # Runs in a shell of its own, before a command does. A command that the history does not keep is not told.
    __ah_start() {
        local line number
        line=$(__ah_history)
        line=${line#"${line%%[![:space:]]*}"}
        number=${line%%[![:digit:]]*}
        line=${line#"$number"}
        # A mark, and one blank; any more are the command's own.
        line=${line#??}
        if [[ -n $number && $number != "$__ah_number" ]]; then
            printf '\e]133;C;cmdline_url=%s\a' "$(__ah_escape "$line")"
        else
            printf '\e]133;C\a'
        fi
    }

    # Before each prompt; keeps the status of the command.
    __ah_prompt() {
        [[ -z $__ah_ran ]] || printf '\e]133;D;%s\a' "$1"
        __ah_ran=''
        __ah_number=$(__ah_history)
        __ah_number=${__ah_number#"${__ah_number%%[![:space:]]*}"}
        __ah_number=${__ah_number%%[![:digit:]]*}
        printf '\e]133;A\a'
        return "$1"
    }

    # An assignment within the prompt, because what runs in it cannot set variables of this shell.
    PS0='${__ah_none:$((__ah_ran=1)):0}$(__ah_start)'${PS0-}
    if [[ $(declare -p PROMPT_COMMAND 2>/dev/null) == 'declare -a'* ]]; then
        PROMPT_COMMAND=('__ah_prompt "$?"' "${PROMPT_COMMAND[@]}")
    else
        PROMPT_COMMAND='__ah_prompt "$?"'${PROMPT_COMMAND:+;$PROMPT_COMMAND}
    fi
fi
