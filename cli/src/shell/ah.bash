# Marks where commands begin and end (OSC 133), for recordings made by `ah agent record`; does nothing anywhere else.
# In ~/.bashrc, at its end:  eval "$(ah shell-init bash)"
if [[ $- == *i* && -n ${AH_RECORDING-} && -z ${__ah_marks-} && -n ${BASH_VERSINFO-} ]] &&
    ((BASH_VERSINFO[0] > 4 || (BASH_VERSINFO[0] == 4 && BASH_VERSINFO[1] >= 4))); then
    __ah_marks=1 __ah_ran='' __ah_none='' __ah_number='' __ah_ignore_dups=''

    # The text with everything but plain characters as %XX.
    __ah_escape() {
        local LC_ALL=C text=$1 i c code
        for ((i = 0; i < ${#text} && i < 2000; i++)); do
            c=${text:i:1}
            case $c in
                [a-zA-Z0-9/._~-]) printf '%s' "$c" ;;
                *)
                    printf -v code '%d' "'$c"
                    printf '%%%02X' "$((code & 255))"
                    ;;
            esac
        done
    }

    # The number of the last command in the history, and the command; or of the last two.
    __ah_history() {
        local HISTTIMEFORMAT=''
        builtin history "${1-1}" 2>/dev/null
    }

    # Sets __ah_n to the number that such a line begins with.
    __ah_numbered() {
        __ah_n=${1#"${1%%[![:space:]]*}"}
        __ah_n=${__ah_n%%[![:digit:]]*}
    }

    # A command that is repeated is to be found in the history while it runs, whatever HISTCONTROL says; that is done here then, when it
    # has ended.
    __ah_dups() {
        local last both number
        case :${HISTCONTROL-}: in
            *:ignoreboth:* | *:ignoredups:*)
                __ah_ignore_dups=1
                HISTCONTROL=:$HISTCONTROL:
                HISTCONTROL=${HISTCONTROL//:ignoreboth:/:ignorespace:}
                HISTCONTROL=${HISTCONTROL//:ignoredups:/:}
                HISTCONTROL=${HISTCONTROL#:}
                HISTCONTROL=${HISTCONTROL%:}
                ;;
        esac
        last=$(__ah_history)
        __ah_numbered "$last"
        number=$__ah_n
        if [[ -n $__ah_ignore_dups && -n $number && $number != "$__ah_number" ]]; then
            both=$(__ah_history 2)
            both=${both%"$last"}
            both=${both%$'\n'}
            __ah_numbered "$both"
            if [[ -n $__ah_n && ${both#*"$__ah_n"} == "${last#*"$number"}" ]]; then
                builtin history -d "$number"
                number=$__ah_n
            fi
        fi
        __ah_number=$number
    }

    # Runs in a shell of its own, before a command does. A command that the history does not keep is not told.
    __ah_start() {
        local line number
        line=$(__ah_history)
        __ah_numbered "$line"
        number=$__ah_n
        line=${line#*"$number"}
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
        __ah_dups
        # Without `promptvars` nothing is expanded in a prompt: then commands are told without their text.
        if shopt -q promptvars; then
            [[ ${PS0-} != "$__ah_plain"* ]] || PS0=$__ah_full${PS0#"$__ah_plain"}
        else
            [[ ${PS0-} != "$__ah_full"* ]] || PS0=$__ah_plain${PS0#"$__ah_full"}
            __ah_ran=1
        fi
        printf '\e]133;A\a'
        return "$1"
    }

    # An assignment within the prompt, because what runs in it cannot set variables of this shell.
    __ah_full='${__ah_none:$((__ah_ran=1)):0}$(__ah_start)' __ah_plain='\e]133;C\a'
    PS0=$__ah_full${PS0-}
    # Within a list of commands, as what fails there neither ends a shell of `set -e` nor is trapped.
    if [[ $(declare -p PROMPT_COMMAND 2>/dev/null) == 'declare -a'* ]]; then
        PROMPT_COMMAND=('__ah_prompt "$?" && :' "${PROMPT_COMMAND[@]}")
    else
        PROMPT_COMMAND='__ah_prompt "$?" && :'${PROMPT_COMMAND:+;$PROMPT_COMMAND}
    fi
fi
